//! One encoding per statement, and the sizes that the protocol names.

use proptest::{option, prelude::*};

use super::*;
use crate::authority::{bls::SecretKey, sign};

fn words(max: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::char::any().prop_filter("control", |c| !c.is_control()), 1..max)
        .prop_map(|chars| chars.into_iter().collect())
}

macro_rules! id {
    ($kind:ident) => {
        words(20).prop_map(|text| $kind::new(&text).unwrap())
    };
}

fn seq() -> impl Strategy<Value = LeaseSeq> {
    (1..=u64::MAX).prop_map(|seq| LeaseSeq::new(seq).unwrap())
}

fn hlc() -> impl Strategy<Value = Hlc> {
    any::<(u64, u32)>().prop_map(|(ms, logical)| Hlc { ms, logical })
}

fn origin() -> impl Strategy<Value = Origin> {
    (words(20), any::<u32>()).prop_map(|(cluster_id, key_epoch)| Origin { cluster_id, key_epoch })
}

fn proof() -> impl Strategy<Value = FenceProof> {
    any::<[u8; 32]>().prop_map(|third| FenceProof([third; 3].as_flattened().try_into().unwrap()))
}

fn request() -> impl Strategy<Value = FenceRequest> {
    let ids = (id!(ObjectId), option::of(id!(LeaseId)), words(30), id!(HolderId), option::of(id!(HolderId)));
    (origin(), ids, option::of(any::<u64>()), hlc()).prop_map(
        |(origin, (domain, current_lease_id, reason, requester, next_holder), ttl_ms, timestamp)| FenceRequest {
            origin,
            domain,
            current_lease_id,
            reason,
            requester,
            next_holder,
            ttl_ms,
            timestamp,
        },
    )
}

fn certificate() -> impl Strategy<Value = FenceCertificate> {
    let ids = (id!(ObjectId), id!(LeaseId), id!(IssuerId), option::of(id!(HolderId)));
    (origin(), ids, seq(), any::<u64>(), hlc()).prop_map(
        |(origin, (domain, fenced_lease_id, issuer, next_holder), lease_seq, start, fence_time)| FenceCertificate {
            origin,
            domain,
            fenced_lease_id,
            lease_seq,
            lease_start: WallMs(start),
            fence_time,
            issuer,
            next_holder,
        },
    )
}

fn grant() -> impl Strategy<Value = LeaseGrant> {
    let ids = (id!(ObjectId), id!(LeaseId), id!(HolderId), id!(IssuerId));
    let predecessor = (id!(LeaseId), option::of(proof()));
    (origin(), ids, seq(), any::<(u64, u64)>(), option::of(predecessor)).prop_map(
        |(origin, (domain, lease_id, holder, issuer), lease_seq, (start, expiry), predecessor)| LeaseGrant {
            origin,
            domain,
            lease_id,
            lease_seq,
            holder,
            start: WallMs(start),
            expiry: WallMs(expiry),
            predecessor: predecessor.map(|(lease_id, proof)| Predecessor { lease_id, proof }),
            issuer,
        },
    )
}

/// Changed bytes either cannot be read, or are read as another statement.
fn assert_one_encoding<T: Statement + PartialEq + std::fmt::Debug>(statement: &T, (place, change): (usize, u8)) {
    let bytes = statement.bytes();
    assert_eq!(T::parse(&bytes).as_ref(), Ok(statement));
    for cut in 0..bytes.len() {
        assert!(T::parse(&bytes[..cut]).is_err(), "{cut} bytes of {bytes:?}");
    }
    assert!(T::parse(&[&bytes[..], &[0]].concat()).is_err());
    let mut changed = bytes.clone();
    let place = place % changed.len();
    changed[place] ^= change.max(1);
    if let Ok(other) = T::parse(&changed) {
        assert_ne!(&other, statement);
        assert_eq!(other.bytes(), changed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn statements_have_one_encoding(
        (request, certificate, grant) in (request(), certificate(), grant()),
        (hash, count) in any::<([u8; 32], u64)>(),
        flip in any::<(usize, u8)>(),
    ) {
        let FenceCertificate { origin, domain, fenced_lease_id, lease_seq, issuer, fence_time, .. } = certificate.clone();
        let acknowledged = FenceAcknowledged {
            origin: origin.clone(),
            domain: domain.clone(),
            fenced_lease_id,
            lease_seq,
            fence: Fence::new(count),
            state_hash: hash,
            writes: count,
            issuer,
            timestamp: fence_time,
        };
        let active = LeaseActive {
            origin,
            domain,
            lease_id: grant.lease_id.clone(),
            lease_seq,
            holder: grant.holder.clone(),
            state_hash: hash,
            timestamp: fence_time,
        };
        assert_one_encoding(&request, flip);
        assert_one_encoding(&certificate, flip);
        assert_one_encoding(&acknowledged, flip);
        assert_one_encoding(&grant, flip);
        assert_one_encoding(&active, flip);
    }
}

/// The certificate of the protocol's own example.
fn example() -> FenceCertificate {
    FenceCertificate {
        origin: Origin { cluster_id: "europe".to_owned(), key_epoch: 1 },
        domain: ObjectId::new("/data/users/").unwrap(),
        fenced_lease_id: LeaseId::new("london-1754842710000").unwrap(),
        lease_seq: LeaseSeq::new(7).unwrap(),
        lease_start: WallMs(1_754_842_710_000),
        fence_time: Hlc { ms: 1_754_842_735_500, logical: 0 },
        issuer: IssuerId::new("europe-cg").unwrap(),
        next_holder: Some(HolderId::new("perth-cg").unwrap()),
    }
}

#[test]
fn the_layout_is_what_it_was() {
    let expected = "0102\
        00066575726f7065\
        00000001\
        000c2f646174612f75736572732f\
        00146c6f6e646f6e2d31373534383432373130303030\
        0000000000000007\
        0000019894c6bff0\
        0000019894c7238c00000000\
        00096575726f70652d6367\
        01000870657274682d6367";
    assert_eq!(hex::encode(example().bytes()), expected);
}

#[test]
fn a_certificate_is_under_250_bytes() {
    let key = SecretKey::from_seed(&[1; 32]);
    assert_eq!(sign(&key, example()).to_bytes().len(), 196);
    let with_uuid = LeaseId::new("01985f8e-7d2c-7cc0-9d5f-7a4a1a2b3c4d").unwrap();
    assert!(sign(&key, FenceCertificate { fenced_lease_id: with_uuid, ..example() }).to_bytes().len() < 250);
}

#[test]
fn a_signed_statement_is_stored_as_it_was_signed() {
    let signed = sign(&SecretKey::from_seed(&[1; 32]), example());
    let bytes = signed.to_bytes();
    assert_eq!(Signed::<FenceCertificate>::from_bytes(&bytes), Ok(signed));
    assert!(Signed::<LeaseGrant>::from_bytes(&bytes).is_err());
    for bad in [&bytes[..95], &bytes[..bytes.len() - 1], &[]] {
        assert!(Signed::<FenceCertificate>::from_bytes(bad).is_err());
    }
}
