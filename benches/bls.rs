//! What checking a certificate costs, compared with blst alone, and how much a batch gains. Both run in turns. Fails
//! if a check costs over a tenth more than blst's own, or a batch gains less than half. `bench/out/bls.json` gets the
//! rounds.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a bench measures time")]
#![allow(clippy::pedantic, reason = "a bench is read, not called")]

use std::{hint::black_box, path::Path, time::Instant};

use blst::{BLST_ERROR, min_pk};
use fencegate::{
    authority::{
        Authority,
        bls::{Claimed, SecretKey, are_all_by},
        sign,
        statement::{FenceCertificate, Kind, Origin, Signed, Statement},
    },
    config::{PartySettings, Settings},
    fence::{BootMs, Hlc, HolderId, IssuerId, LeaseId, LeaseSeq, Now, ObjectId, WallMs},
};

const ROUNDS: usize = 15;
const EACH: usize = 100;
const BATCH: usize = 1_000;
const OVER_BLST: f64 = 1.10;
const BATCH_GAIN: f64 = 1.5;
const NOW: Now = Now { wall: WallMs(1_800_000_000_000), boot: BootMs(1) };
/// The same tag as in the product.
const TAG: &[u8] = b"FENCEGATE_FENCE_CERTIFICATE_V1_BLS_SIG_BLS12381G2_XMD:SHA-256_SSWU_RO_POP_";

fn certificate(n: u64) -> FenceCertificate {
    FenceCertificate {
        origin: Origin { cluster_id: "europe".to_owned(), key_epoch: 1 },
        domain: ObjectId::new("/data/users/").unwrap(),
        fenced_lease_id: LeaseId::new("01985f8e-7d2c-7cc0-9d5f-7a4a1a2b3c4d").unwrap(),
        lease_seq: LeaseSeq::new(n + 1).unwrap(),
        lease_start: WallMs(NOW.wall.0 - 25_000),
        fence_time: Hlc { ms: NOW.wall.0, logical: 0 },
        issuer: IssuerId::new("europe-cg").unwrap(),
        next_holder: Some(HolderId::new("perth-cg").unwrap()),
    }
}

fn authority(key: &SecretKey) -> Authority {
    let party = PartySettings {
        name: "europe-cg".to_owned(),
        public_key: key.public().to_string(),
        proof_of_possession: key.prove_possession().to_string(),
        domains: vec!["/data".to_owned()],
        ..PartySettings::default()
    };
    let mut settings = Settings { issuer: vec![party], ..Settings::default() };
    settings.authority.cluster_id = "europe".to_owned();
    Authority::new(&settings).unwrap()
}

fn micros_each(times: usize, mut does: impl FnMut(usize)) -> f64 {
    let begun = Instant::now();
    (0..times).for_each(&mut does);
    begun.elapsed().as_secs_f64() * 1e6 / times as f64
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let key = SecretKey::from_seed(&[1; 32]);
    let (authority, public) = (authority(&key), key.public());
    let all: Vec<Signed<FenceCertificate>> = (0..BATCH as u64).map(|n| sign(&key, certificate(n))).collect();
    let stored: Vec<Vec<u8>> = all.iter().map(Signed::to_bytes).collect();
    let bytes: Vec<Vec<u8>> = all.iter().map(|signed| signed.statement.bytes()).collect();
    let point = min_pk::PublicKey::key_validate(&public.to_bytes()).unwrap();
    // The whole check from the raw bytes: read, points checked, signature, authority and timeline.
    let ours = |n: usize| {
        let signed = Signed::<FenceCertificate>::from_bytes(black_box(&stored[n % BATCH])).unwrap();
        authority.certificate(&signed, NOW).unwrap();
    };
    // The same with blst alone: the point read and checked, then the signature.
    let theirs = |n: usize| {
        let (message, signature) = stored[n % BATCH].split_at(bytes[n % BATCH].len());
        let signature = min_pk::Signature::sig_validate(black_box(signature), true).unwrap();
        assert_eq!(signature.verify(false, message, TAG, &[], &point, false), BLST_ERROR::BLST_SUCCESS);
    };
    let claims: Vec<Claimed<'_>> = all
        .iter()
        .zip(&bytes)
        .map(|(signed, bytes)| Claimed { key: &public, bytes, signature: &signed.signature })
        .collect();
    let rounds: Vec<[f64; 4]> = (0..ROUNDS)
        .map(|_| {
            let (theirs, ours) = (micros_each(EACH, theirs), micros_each(EACH, ours));
            let single =
                micros_each(BATCH, |n| assert!(claims[n].signature.is_by(&public, Kind::FenceCertificate, &bytes[n])));
            let batch =
                micros_each(1, |_| assert!(are_all_by(Kind::FenceCertificate, &claims).unwrap())) / BATCH as f64;
            [ours, theirs, single, batch]
        })
        .collect();
    let of = |n: usize| median(rounds.iter().map(|round| round[n]).collect());
    let over = median(rounds.iter().map(|[ours, theirs, ..]| ours / theirs).collect());
    let gain = median(rounds.iter().map(|[.., single, batch]| single / batch).collect());
    let (size, cores) = (stored[0].len(), std::thread::available_parallelism().map_or(0, usize::from));
    println!("a certificate: {size} bytes; checked in {:.0} us, by blst alone in {:.0} us: {over:.3}", of(0), of(1));
    println!(
        "{BATCH} certificates on {cores} core(s): one by one {:.0} us each, together {:.0} us each: {gain:.2} times",
        of(2),
        of(3)
    );
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/out");
    std::fs::create_dir_all(&folder).unwrap();
    let figures = serde_json::json!({ "bytes": size, "cores": cores, "rounds": rounds });
    std::fs::write(folder.join(format!("bls-{cores}.json")), format!("{figures}\n")).unwrap();
    assert!(size < 250, "a certificate is too long");
    assert!(over <= OVER_BLST, "checking costs more than blst's own time and a tenth");
    assert!(gain >= BATCH_GAIN, "a batch gains too little");
}
