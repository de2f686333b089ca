//! Published vectors (tests/data/bls), and signatures that must not verify.

use serde_json::Value;

use super::*;

fn vectors(section: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../../tests/data/bls/vectors.json")).unwrap();
    let section = all[section].as_array().unwrap().clone();
    assert!(!section.is_empty());
    section
}

fn bytes(case: &Value, field: &str) -> Vec<u8> {
    hex::decode(case[field].as_str().unwrap().trim_start_matches("0x")).unwrap()
}

fn public_key(bytes: &[u8]) -> Result<PublicKey, PointFault> {
    PublicKey::from_bytes(bytes.try_into().map_err(|_| PointFault::Encoding)?)
}

fn signature(bytes: &[u8]) -> Result<Signature, PointFault> {
    Signature::from_bytes(bytes.try_into().map_err(|_| PointFault::Encoding)?)
}

/// The tag of the plain scheme, which the vectors use and the product never does.
fn plain_tag() -> String {
    format!("BLS_SIG_{SUITE}")
}

#[test]
fn signatures_are_those_of_the_published_vectors() {
    for case in vectors("sign") {
        let key = SecretKey::from_bytes(&bytes(&case, "privkey").try_into().unwrap());
        if case["signature"].is_null() {
            assert_eq!(key.err(), Some(PointFault::Scalar), "{case}");
            continue;
        }
        let signed = key.unwrap().sign_tagged(&plain_tag(), &bytes(&case, "message"));
        assert_eq!(signed.to_bytes()[..], bytes(&case, "signature")[..], "{case}");
    }
}

#[test]
fn what_verifies_is_what_the_published_vectors_say() {
    for case in vectors("verify") {
        let verified = public_key(&bytes(&case, "pubkey")).and_then(|key| {
            let signature = signature(&bytes(&case, "signature"))?;
            Ok(signature.verifies(&key, &plain_tag(), &bytes(&case, "message")))
        });
        assert_eq!(verified.unwrap_or(false), case["output"].as_bool().unwrap(), "{case}");
    }
}

#[test]
fn points_are_read_as_the_published_vectors_say_but_infinity_is_refused() {
    let mut seen = std::collections::BTreeSet::new();
    for (section, field) in [("deserialization_G1", "pubkey"), ("deserialization_G2", "signature")] {
        for case in vectors(section) {
            let given = bytes(&case, field);
            let read = if field == "pubkey" { public_key(&given).err() } else { signature(&given).err() };
            let name = case["name"].as_str().unwrap();
            match (case["output"].as_bool().unwrap(), name.contains("infinity")) {
                (true, true) => assert_eq!(read, Some(PointFault::Infinity), "{name}"),
                (true, false) => assert_eq!(read, None, "{name}"),
                (false, _) => assert!(read.is_some(), "{name}"),
            }
            if name.contains("not_in_G") {
                assert_eq!(read, Some(PointFault::OffSubgroup), "{name}");
            }
            if name.contains("not_in_curve") {
                assert_eq!(read, Some(PointFault::OffCurve), "{name}");
            }
            seen.extend(read.map(|fault| fault.to_string()));
        }
    }
    assert_eq!(seen.len(), 4, "encoding, curve, subgroup and infinity: {seen:?}");
}

#[test]
fn proofs_of_possession_are_those_of_another_implementation() {
    for case in vectors("pop") {
        let key = SecretKey::from_bytes(&bytes(&case, "privkey").try_into().unwrap()).unwrap();
        let (public, proof) = (key.public(), key.prove_possession());
        assert_eq!(public.to_bytes()[..], bytes(&case, "pubkey")[..]);
        assert_eq!(proof.to_bytes()[..], bytes(&case, "proof")[..]);
        assert!(public.is_possessed(&proof));
        assert!(!SecretKey::from_seed(&[9; 32]).public().is_possessed(&proof), "another's");
        let plain = key.sign_tagged(&plain_tag(), &public.to_bytes());
        assert!(!public.is_possessed(&plain), "a plain signature over the key proves nothing");
    }
}

#[test]
fn a_batch_holds_only_if_each_of_it_does() {
    let keys: Vec<SecretKey> = (1..=8).map(|n| SecretKey::from_seed(&[n; 32])).collect();
    let publics: Vec<PublicKey> = keys.iter().map(SecretKey::public).collect();
    let texts: Vec<Vec<u8>> = (0..8).map(|n| vec![n; 40]).collect();
    let mut signed: Vec<Signature> =
        keys.iter().zip(&texts).map(|(key, text)| key.sign(Kind::FenceCertificate, text)).collect();
    let holds = |signed: &[Signature], kind| {
        let claims = publics.iter().zip(&texts).zip(signed);
        let claims: Vec<Claimed<'_>> =
            claims.map(|((key, bytes), signature)| Claimed { key, bytes, signature }).collect();
        are_all_by(kind, &claims).unwrap()
    };
    assert!(holds(&signed, Kind::FenceCertificate));
    assert!(!holds(&signed, Kind::LeaseGrant), "another kind");
    signed.swap(2, 5);
    assert!(!holds(&signed, Kind::FenceCertificate), "two changed places: their sum is the same");
    assert_eq!(are_all_by(Kind::FenceCertificate, &[]), Ok(true));
}

/// The forged set of the vectors passes a plain sum. This test calls the check with the plain tag.
#[test]
fn a_forged_batch_that_adds_up_is_found() {
    for case in vectors("batch_verify") {
        let list = |field: &str| -> Vec<Vec<u8>> {
            let items = case[field].as_array().unwrap();
            items.iter().map(|item| hex::decode(item.as_str().unwrap().trim_start_matches("0x")).unwrap()).collect()
        };
        let keys: Result<Vec<_>, _> = list("pubkeys").iter().map(|bytes| public_key(bytes)).collect();
        let signatures: Result<Vec<_>, _> = list("signatures").iter().map(|bytes| signature(bytes)).collect();
        let (messages, expected) = (list("messages"), case["output"].as_bool().unwrap());
        let (Ok(keys), Ok(signatures)) = (keys, signatures) else {
            assert!(!expected, "{}", case["name"]);
            continue;
        };
        let claims = keys.iter().zip(&messages).zip(&signatures);
        let claims: Vec<Claimed<'_>> =
            claims.map(|((key, bytes), signature)| Claimed { key, bytes, signature }).collect();
        assert_eq!(are_all_tagged(&plain_tag(), &claims).unwrap(), expected, "{}", case["name"]);
    }
}

/// A rogue key is chosen so that it cancels an honest key out: the two together then have a signature that the honest
/// key never made. The rogue key has no proof of possession, so it is not accepted.
#[test]
fn a_rogue_key_proves_no_possession() {
    use blst::min_pk::{AggregatePublicKey, AggregateSignature};
    let (honest, attacker) = (SecretKey::from_seed(&[1; 32]), SecretKey::from_seed(&[2; 32]));
    let mut rogue = AggregatePublicKey::from_public_key(&attacker.public().0);
    rogue.sub_aggregate(&AggregatePublicKey::from_public_key(&honest.public().0));
    let rogue = PublicKey(rogue.to_public_key());
    let forged = attacker.sign(Kind::FenceCertificate, b"fence");
    let both = [&honest.public().0, &rogue.0];
    let together = forged.point.fast_aggregate_verify(true, b"fence", tag(Kind::FenceCertificate).as_bytes(), &both);
    assert_eq!(together, BLST_ERROR::BLST_SUCCESS, "that is what makes it dangerous");
    assert!(!forged.is_by(&rogue, Kind::FenceCertificate, b"fence"));
    // The best that the attacker can make from its own key and the proofs it has seen.
    let mut best = AggregateSignature::from_signature(&attacker.prove_possession().point);
    best.add_signature(&honest.prove_possession().point, true).unwrap();
    let best = Signature::from_bytes(&best.to_signature().compress()).unwrap();
    for proof in [attacker.prove_possession(), honest.prove_possession(), best] {
        assert!(!rogue.is_possessed(&proof));
    }
}

#[test]
fn each_kind_has_a_tag_of_its_own() {
    let key = SecretKey::from_seed(&[3; 32]);
    for kind in Kind::ALL {
        for other in Kind::ALL {
            assert_eq!(key.sign(kind, b"x").is_by(&key.public(), other, b"x"), kind == other);
        }
        assert!(!key.prove_possession().is_by(&key.public(), kind, &key.public().to_bytes()));
    }
    assert_eq!(
        tag(Kind::FenceCertificate),
        "FENCEGATE_FENCE_CERTIFICATE_V1_BLS_SIG_BLS12381G2_XMD:SHA-256_SSWU_RO_POP_"
    );
}

#[test]
fn texts_have_one_spelling_and_secrets_print_as_stars() {
    let key = SecretKey::from_seed(&[4; 32]);
    let (public, signed) = (key.public(), key.sign(Kind::LeaseGrant, b"x"));
    assert_eq!(public.to_string().parse(), Ok(public));
    assert_eq!(signed.to_string().parse(), Ok(signed));
    assert_eq!(key.expose().parse(), Ok(key.clone()));
    assert_eq!(format!("{key:?}"), "***");
    let text = signed.to_string();
    let faults = [
        (text.to_uppercase(), PointFault::Prefix(PREFIX)),
        (text.replacen("bls:", "", 1), PointFault::Prefix(PREFIX)),
        (text[..text.len() - 2].to_owned(), PointFault::Length { expected: 192, found: 190 }),
        (format!("{}zz", &text[..text.len() - 2]), PointFault::Hex),
        (format!("{PREFIX}{}", text[PREFIX.len()..].to_uppercase()), PointFault::Hex),
        (format!("{PREFIX}{}", "0".repeat(192)), PointFault::Encoding),
        (format!("{PREFIX}c0{}", "0".repeat(190)), PointFault::Infinity),
    ];
    for (text, fault) in faults {
        assert_eq!(text.parse::<Signature>(), Err(fault), "{text}");
    }
}
