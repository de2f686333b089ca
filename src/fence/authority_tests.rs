//! Certificates in any order and number, and which grants are accepted after them.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::fence::{
    BootMs, Event, HolderId, Incarnation, Now, ObjectId, TableKey, Ttl,
    step::{Source, Window},
};

static KEY: LazyLock<TableKey> = LazyLock::new(|| TableKey::from_bytes([3; 32]));
const T0: u64 = 1_800_000_000_000;
const FAR: u64 = 1 << 20;
const FORGED: FenceProof = FenceProof([1; 96]);

fn at(ms: u64) -> At<'static> {
    let now = Now { wall: WallMs(T0 + ms), boot: BootMs(1_000 + ms) };
    At { now, stamp: Hlc { ms: T0 + ms, logical: 0 }, key: &KEY }
}

fn fresh() -> Record {
    Record::unknown(ObjectId::new("/data/users/").unwrap(), Incarnation::default())
}

fn seq(n: u64) -> LeaseSeq {
    LeaseSeq::new(n).unwrap()
}

fn certified(lease: &str, number: u64, ms: u64, issuer: &str) -> Arc<Certified> {
    let mut proof = [0; FenceProof::BYTES];
    for (place, byte) in format!("{lease} {number} {ms} {issuer}").bytes().enumerate() {
        proof[place] = byte;
    }
    let (lease_id, issuer) = (LeaseId::new(lease).unwrap(), IssuerId::new(issuer).unwrap());
    Arc::new(Certified { lease_id, seq: seq(number), issuer, time: Hlc { ms, logical: 0 }, proof: FenceProof(proof) })
}

fn signed(lease: &str, number: u64, holder: &str, window: (u64, u64), after: Option<Predecessor>) -> SignedGrant {
    let window = Window { start: WallMs(T0 + window.0), until: WallMs(T0 + window.1) };
    let grant = Grant {
        lease_id: LeaseId::new(lease).unwrap(),
        holder: HolderId::new(holder).unwrap(),
        ttl: Ttl(0),
        request: None,
        tainted: false,
        window: Some(window),
        source: Source::Gate,
    };
    // The ledger looks the certificate up for a predecessor that shows a proof.
    let proofs = after.iter().filter_map(|each| each.proof).filter(|proof| *proof != FORGED).collect();
    SignedGrant { seq: seq(number), grant, predecessor: after, proofs, max_jump: FAR }
}

/// Takes a step as the ledger does where nothing is in flight.
fn run(record: &mut Record, event: Event, ms: u64) -> Outcome {
    let (mut outcome, mut effects) = record.step(event, &at(ms));
    let mut next = 0;
    while next < effects.len() {
        match effects[next].clone() {
            Effect::Store(new) => {
                assert!(new.fence >= record.fence, "a fence went down");
                *record = new;
            }
            Effect::Drain { seq, advance, then } => {
                let (opened, more) = record.step(Event::Drained { seq, advance, then }, &at(ms));
                outcome = opened;
                effects.extend(more);
            }
            Effect::Remember(_) | Effect::Announce(_) => {}
        }
        next += 1;
    }
    outcome
}

fn fence(record: &mut Record, by: &Arc<Certified>) -> Outcome {
    run(record, Event::Fence { by: Arc::clone(by), max_jump: FAR }, 0)
}

#[allow(clippy::unnecessary_wraps, reason = "as a grant has it")]
fn after(by: &Certified) -> Option<Predecessor> {
    Some(Predecessor { lease_id: by.lease_id.clone(), proof: Some(by.proof) })
}

#[test]
fn a_certificate_moves_the_fence_past_its_lease_and_is_taken_once() {
    let mut record = fresh();
    let by = certified("london", 7, T0, "europe");
    assert_eq!(fence(&mut record, &by), Outcome::Freed);
    assert_eq!((record.fence.get(), record.certified.as_ref()), (8, Some(&by)));
    let before = record.clone();
    assert_eq!(fence(&mut record, &by), Outcome::Fenced);
    assert_eq!(record, before, "the same once more changes nothing");
    assert_eq!(fence(&mut record, &certified("older", 3, T0 + 5, "europe")), Outcome::Superseded);
    assert_eq!(fence(&mut record, &certified("london", 7, T0 - 1, "europe")), Outcome::Superseded);
    assert_eq!(record, before);
    let later = certified("london", 7, T0 + 9, "europe");
    assert_eq!((fence(&mut record, &later), record.fence.get()), (Outcome::Fenced, 8));
    assert_eq!(record.certified.as_ref(), Some(&later));
}

#[test]
fn a_certificate_that_jumps_too_far_changes_nothing() {
    let mut record = fresh();
    let far = certified("london", FAR, T0, "europe");
    let outcome = fence(&mut record, &far);
    assert_eq!(outcome, Outcome::Refused(LeaseRefusal::Jump { fence: Fence::new(0), to: seq(FAR + 1) }));
    assert_eq!(record, fresh());
    assert_eq!(fence(&mut record, &certified("london", FAR - 1, T0, "europe")), Outcome::Freed);
    assert_eq!((fence(&mut record, &far), record.fence.get()), (Outcome::Freed, FAR + 1));
    for last in [MAX_GATE_SEQ, u64::MAX] {
        let (outcome, _) = record.step(Event::Fence { by: certified("x", last, T0, "e"), max_jump: u64::MAX }, &at(0));
        assert_eq!(outcome, Outcome::Refused(LeaseRefusal::SeqExhausted));
    }
}

#[test]
fn a_grant_needs_its_predecessor_fenced_or_over_and_says_which() {
    let mut record = fresh();
    let first = signed("london", 1, "london", (0, 100), None);
    let Outcome::Granted(lease) = run(&mut record, Event::Grant(first.clone()), 0) else { panic!("not granted") };
    assert_eq!((lease.seq, lease.expires_at, lease.deadline), (seq(1), WallMs(T0 + 100), BootMs(1_100)));
    let next = |after| signed("perth", 2, "perth", (0, 200), after);
    let plain = Some(Predecessor { lease_id: LeaseId::new("london").unwrap(), proof: None });
    // While the lease lives, no other holder gets it, whatever proof it shows.
    let outcome = run(&mut record, Event::Grant(next(plain.clone())), 10);
    assert!(matches!(outcome, Outcome::Refused(LeaseRefusal::Held { .. })), "{outcome:?}");
    let by = certified("london", 1, T0 + 20, "europe");
    fence(&mut record, &by);
    let london = Some(LeaseId::new("london").unwrap());
    for (shown, why) in [
        (None, LeaseRefusal::Predecessor { expected: london.clone() }),
        (
            Some(Predecessor { lease_id: LeaseId::new("paris").unwrap(), proof: Some(by.proof) }),
            LeaseRefusal::Predecessor { expected: london },
        ),
        (plain, LeaseRefusal::FenceProof),
        (Some(Predecessor { proof: Some(FORGED), ..after(&by).unwrap() }), LeaseRefusal::FenceProof),
    ] {
        let before = record.clone();
        assert_eq!(run(&mut record, Event::Grant(next(shown)), 30), Outcome::Refused(why));
        assert_eq!(record, before);
    }
    let Outcome::Granted(lease) = run(&mut record, Event::Grant(next(after(&by))), 30) else { panic!("not granted") };
    assert_eq!((lease.seq, record.fence), (seq(2), Fence::new(2)), "the number that the certificate left");
    // A lease that ran out has no proof to show.
    let third =
        signed("rome", 3, "rome", (0, 400), Some(Predecessor { lease_id: lease.lease_id.clone(), proof: None }));
    assert!(matches!(run(&mut record, Event::Grant(third), 200), Outcome::Granted(_)));
}

#[test]
fn a_number_is_granted_once() {
    let mut record = fresh();
    let by = certified("london", 4, T0, "europe");
    fence(&mut record, &by);
    let perth = signed("perth", 5, "perth", (0, 100), after(&by));
    let Outcome::Granted(lease) = run(&mut record, Event::Grant(perth.clone()), 0) else { panic!("not granted") };
    assert_eq!(run(&mut record, Event::Grant(perth.clone()), 0), Outcome::Granted(lease.clone()), "the same again");
    record.mark_used(|| BootMs(0));
    assert_eq!(run(&mut record, Event::Grant(perth), 0), Outcome::Refused(LeaseRefusal::GrantUsed));
    let other = signed("perth", 5, "rome", (0, 100), after(&by));
    assert_eq!(run(&mut record, Event::Grant(other), 0), Outcome::Refused(LeaseRefusal::GrantUsed), "another holder");
    let longer = signed("perth", 5, "perth", (0, 900), after(&by));
    let Outcome::Renewed(lease) = run(&mut record, Event::Grant(longer.clone()), 50) else { panic!("not renewed") };
    assert_eq!((lease.expires_at, lease.deadline), (WallMs(T0 + 900), BootMs(1_900)));
    // It has run out; its number is used up.
    let outcome = run(&mut record, Event::Grant(longer), 900);
    assert!(matches!(outcome, Outcome::Refused(LeaseRefusal::Expired { .. })), "{outcome:?}");
    let again =
        signed("rome", 5, "rome", (0, 2_000), Some(Predecessor { lease_id: lease.lease_id.clone(), proof: None }));
    assert_eq!(
        run(&mut record, Event::Grant(again), 950),
        Outcome::Refused(LeaseRefusal::Fenced { fence: Fence::new(5) })
    );
    // Nor is a number free to which an operator has moved the fence. The predecessor is not known then.
    run(&mut record, Event::Revoke { reason: "x".to_owned(), source: Source::Gate }, 960);
    let revoked = signed("rome", 6, "rome", (0, 2_000), None);
    let outcome = run(&mut record, Event::Grant(revoked), 970);
    assert_eq!(outcome, Outcome::Refused(LeaseRefusal::Fenced { fence: Fence::new(6) }));
    let forged =
        signed("rome", 7, "rome", (0, 2_000), Some(Predecessor { lease_id: lease.lease_id, proof: Some(FORGED) }));
    assert_eq!(run(&mut record, Event::Grant(forged), 970), Outcome::Refused(LeaseRefusal::FenceProof));
    let above = signed("rome", 7, "rome", (0, 2_000), None);
    assert!(matches!(run(&mut record, Event::Grant(above), 970), Outcome::Granted(_)));
}

#[test]
fn a_grant_counts_from_its_start_and_not_beyond_its_end() {
    let mut record = fresh();
    let outcome = run(&mut record, Event::Grant(signed("l", 1, "a", (0, 50), None)), 50);
    assert!(matches!(outcome, Outcome::Refused(LeaseRefusal::Expired { .. })), "{outcome:?}");
    assert_eq!(record, fresh(), "nothing has changed");
    let Outcome::Granted(lease) = run(&mut record, Event::Grant(signed("m", 1, "a", (500, 900), None)), 100) else {
        panic!("not granted")
    };
    let in_ms = |ms| lease.begins_in(at(ms).now);
    assert_eq!((in_ms(100), in_ms(499), in_ms(500)), (Some(400), Some(1), None));
    assert!(lease.is_live(at(899).now) && !lease.is_live(at(900).now));
}

proptest! {
    /// Any order, any repetition: the same fence, and the same certificate on it.
    #[test]
    fn certificates_end_in_the_same_fences(
        given in prop::collection::vec((1_u64..12, 0_u64..6, prop::sample::select(vec!["e", "f"])), 1..8),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
    ) {
        let all: Vec<_> = given.iter().map(|(n, ms, by)| certified(&format!("l{n}"), *n, T0 + ms, by)).collect();
        let mut once = fresh();
        for by in &all {
            fence(&mut once, by);
        }
        let mut often = fresh();
        // First some of them any number of times, then each once, from the last to the first.
        for by in order.iter().map(|index| index.get(&all)).chain(all.iter().rev()) {
            fence(&mut often, by);
        }
        prop_assert_eq!(once.fence, often.fence);
        prop_assert_eq!(&once.certified, &often.certified);
        let highest = given.iter().map(|(n, ..)| n + 1).max().unwrap();
        prop_assert_eq!(once.fence.get(), highest);
        prop_assert_eq!(once.state, State::Free { last: None });
    }
}
