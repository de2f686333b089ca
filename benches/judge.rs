//! How long a verdict takes, and a token's parsing.

#![allow(clippy::pedantic, reason = "a bench is read, not called")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use fencegate::fence::{
    BootMs, Fence, FenceToken, Hlc, HolderId, Incarnation, Lease, LeaseId, LeaseSeq, Now, ObjectId, Record, State,
    TableKey, Ttl, WallMs,
    record::Numbers,
    token::TokenClaim,
    verdict::{Presented, View, judge},
};

fn bench(criterion: &mut Criterion) {
    let now = Now { wall: WallMs(1_800_000_000_000), boot: BootMs(1_000) };
    let object = ObjectId::new("/data/users/").unwrap();
    let (seq, lease_id) = (LeaseSeq::new(42).unwrap(), LeaseId::new("01a1e2b1-8b79-7a30-bd29-7d1a97fa0dc2").unwrap());
    let key = TableKey::from_bytes([7; 32]);
    let lease = Lease {
        proof: key.proof(&object, seq, &lease_id),
        lease_id: lease_id.clone(),
        seq,
        holder: HolderId::new("pod-a").unwrap(),
        acquired_at: now.wall,
        expires_at: now.wall.after(Ttl(30_000)),
        deadline: now.boot.after(Ttl(30_000)),
        ttl: Ttl(30_000),
        request: None,
        used: false,
        tainted: false,
        start: None,
    };
    let token = lease.token(&object);
    let text = token.expose();
    let record = Record {
        object: object.clone(),
        fence: Fence::from(seq),
        state: State::Open { lease },
        incarnation: Incarnation::default(),
        changed: Hlc::default(),
        certified: None,
        numbers: Numbers::Gate,
        elected: None,
        lost: 0,
    };
    let presented = Presented::of(&token, &object);
    let view = View::Known { record: &record, sealed: false };
    criterion.bench_function("judge a warm object", |bench| {
        bench.iter(|| judge(black_box(view), black_box(&presented), black_box(now)));
    });
    criterion.bench_function("parse a token", |bench| bench.iter(|| FenceToken::parse(black_box(&text))));
    criterion.bench_function("parse a token against its object", |bench| {
        bench.iter(|| TokenClaim::parse(black_box(&text), black_box("/data/users/")));
    });
    criterion.bench_function("make a token's secret", |bench| {
        bench.iter(|| key.secret(black_box(&object), seq, black_box(&lease_id)));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
