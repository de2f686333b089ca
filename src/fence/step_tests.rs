//! Steps, each with its outcome and the exact effects.

use std::sync::LazyLock;

use super::*;
use crate::fence::{BootMs, Incarnation, ObjectId, Secret, WallMs, seq::MAX_GATE_SEQ};

static KEY: LazyLock<TableKey> = LazyLock::new(|| TableKey::from_bytes([3; 32]));
const T0: u64 = 1_800_000_000_000;

fn at(ms: u64) -> At<'static> {
    let now = Now { wall: WallMs(T0 + ms), boot: BootMs(1_000 + ms) };
    At { now, stamp: Hlc { ms: T0 + ms, logical: 0 }, key: &KEY }
}

fn id(text: &str) -> LeaseId {
    LeaseId::new(text).unwrap()
}

fn holder(text: &str) -> HolderId {
    HolderId::new(text).unwrap()
}

fn grant(lease: &str, who: &str) -> Grant {
    Grant {
        lease_id: id(lease),
        holder: holder(who),
        ttl: Ttl(100),
        request: None,
        tainted: false,
        window: None,
        source: Source::Gate,
    }
}

fn acquire(lease: &str, who: &str) -> Event {
    Event::Acquire { grant: grant(lease, who), takeover_after_ms: None }
}

fn takeover(lease: &str, who: &str) -> Event {
    Event::Acquire { grant: grant(lease, who), takeover_after_ms: Some(10) }
}

fn fresh() -> Record {
    Record::unknown(ObjectId::new("users").unwrap(), Incarnation::default())
}

/// Takes a step as the ledger does where no write is in flight: through the drain, in one call.
fn run(record: &mut Record, event: Event, ms: u64) -> (Outcome, Vec<&'static str>) {
    let (mut outcome, mut effects) = record.step(event, &at(ms));
    let mut seen = vec![];
    let mut next = 0;
    while next < effects.len() {
        match effects[next].clone() {
            Effect::Store(new) => {
                assert!(new.fence >= record.fence, "a fence went down");
                *record = new;
                seen.push("store");
            }
            Effect::Remember(_) => seen.push("remember"),
            Effect::Announce(line) => seen.push(line.kind.as_str()),
            Effect::Drain { seq, advance, then } => {
                seen.push("drain");
                let (opened, more) = record.step(Event::Drained { seq, advance, then }, &at(ms));
                outcome = opened;
                effects.extend(more);
            }
        }
        next += 1;
    }
    (outcome, seen)
}

fn granted(record: &mut Record, lease: &str, who: &str, ms: u64) -> Lease {
    match run(record, acquire(lease, who), ms).0 {
        Outcome::Granted(lease) => lease,
        other => panic!("{other:?}"),
    }
}

fn proof(record: &Record, lease: &Lease) -> LeaseProof {
    let row = LeaseRow::new(&record.object, lease, None);
    LeaseProof { row, holder: Some(lease.holder.clone()), token: lease.token(&record.object) }
}

fn renew(proof: LeaseProof, ttl: u64) -> Event {
    Event::Renew { proof, ttl: Ttl(ttl), rotate: None }
}

#[test]
fn the_first_acquire_moves_the_fence_drains_and_then_opens() {
    let mut record = fresh();
    let (outcome, seen) = run(&mut record, acquire("l1", "a"), 0);
    let Outcome::Granted(lease) = outcome else { panic!("{outcome:?}") };
    assert_eq!(seen, ["store", "drain", "remember", "granted", "store"]);
    assert_eq!((record.fence.get(), lease.seq.get()), (1, 1));
    assert_eq!((lease.expires_at, lease.deadline), (WallMs(T0 + 100), BootMs(1_100)));
    assert_eq!(record.open_lease(), Some(&lease));
}

#[test]
fn a_held_object_is_refused_with_its_holder_and_the_time_left() {
    let mut record = fresh();
    granted(&mut record, "l1", "a", 0);
    let before = record.clone();
    let (outcome, seen) = run(&mut record, acquire("l2", "b"), 40);
    let lease = Some((id("l1"), holder("a"), LeaseSeq::new(1).unwrap()));
    let held = LeaseRefusal::Held { lease, retry_ms: 60, takeover_after_ms: None };
    assert_eq!((outcome, seen), (Outcome::Refused(held), vec![]));
    assert_eq!(record, before);
    // Its own holder has to ask for a takeover.
    assert!(matches!(run(&mut record, acquire("l2", "a"), 40).0, Outcome::Refused(LeaseRefusal::Held { .. })));
}

#[test]
fn an_acquire_at_the_instant_of_expiry_ends_the_old_lease_and_wins() {
    let mut record = fresh();
    granted(&mut record, "l1", "a", 0);
    assert!(matches!(run(&mut record, acquire("l2", "b"), 99).0, Outcome::Refused(_)));
    let (outcome, seen) = run(&mut record, acquire("l2", "b"), 100);
    assert!(matches!(outcome, Outcome::Granted(lease) if lease.seq.get() == 2));
    assert_eq!(seen, ["remember", "expired", "store", "drain", "remember", "granted", "store"]);
}

#[test]
fn a_renewal_keeps_the_seq_and_never_shortens() {
    let mut record = fresh();
    let lease = granted(&mut record, "l1", "a", 0);
    let (outcome, seen) = {
        let renewal = renew(proof(&record, &lease), 10);
        run(&mut record, renewal, 50)
    };
    let Outcome::Renewed(short) = outcome else { panic!("{outcome:?}") };
    assert_eq!((short.seq, short.deadline, short.expires_at), (lease.seq, lease.deadline, lease.expires_at));
    assert_eq!(seen, ["renewed", "store"]);
    let (outcome, _) = {
        let renewal = renew(proof(&record, &lease), 500);
        run(&mut record, renewal, 60)
    };
    assert!(matches!(outcome, Outcome::Renewed(long) if long.deadline == BootMs(1_560) && long.used));
}

#[test]
fn the_refusals_of_a_renewal_come_in_their_order() {
    let mut record = fresh();
    let lease = granted(&mut record, "l1", "a", 0);
    let good = proof(&record, &lease);
    let refusal = |record: &Record, proof: &LeaseProof, ms| match record.step(renew(proof.clone(), 50), &at(ms)).0 {
        Outcome::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    // The lease is expired, and token and holder are wrong: the wrong holder is reported first.
    let mut proof = good.clone();
    proof.token.secret = Secret::from_bytes([0; 16]);
    proof.holder = Some(holder("b"));
    assert_eq!(refusal(&record, &proof, 200), LeaseRefusal::NotHolder);
    proof.holder = Some(holder("a"));
    assert_eq!(refusal(&record, &proof, 200), LeaseRefusal::TokenMismatch);
    let mut other = good.clone();
    other.token.object = ObjectId::new("orders").unwrap();
    assert_eq!(refusal(&record, &other, 0), LeaseRefusal::TokenMismatch);
    other = good.clone();
    other.token.seq = LeaseSeq::new(2).unwrap();
    assert_eq!(refusal(&record, &other, 0), LeaseRefusal::TokenMismatch);
    assert!(matches!(refusal(&record, &good, 100), LeaseRefusal::Expired { .. }));
    // Fenced comes before expired: this lease is both.
    granted(&mut record, "l2", "b", 100);
    assert_eq!(refusal(&record, &good, 200), LeaseRefusal::Fenced { fence: Fence::new(2) });
}

#[test]
fn a_refusal_that_calls_a_lease_expired_makes_it_so() {
    let mut record = fresh();
    let lease = granted(&mut record, "l1", "a", 0);
    let (outcome, seen) = {
        let renewal = renew(proof(&record, &lease), 50);
        run(&mut record, renewal, 100)
    };
    assert!(matches!(outcome, Outcome::Refused(LeaseRefusal::Expired { .. })));
    assert_eq!(seen, ["remember", "expired", "store"]);
    // The lease stays over, also if the clock goes back.
    let (outcome, seen) = {
        let renewal = renew(proof(&record, &lease), 50);
        run(&mut record, renewal, 10)
    };
    assert!(matches!(outcome, Outcome::Refused(LeaseRefusal::Expired { .. })));
    assert!(seen.is_empty());
}

#[test]
fn ending_is_for_leases_past_their_deadline_only() {
    let mut record = fresh();
    granted(&mut record, "l1", "a", 0);
    let end = || Event::End { lease_id: id("l1") };
    assert_eq!(run(&mut record, end(), 99), (Outcome::Unchanged, vec![]));
    assert_eq!(run(&mut record, end(), 100), (Outcome::Ended, vec!["remember", "expired", "store"]));
    assert_eq!(run(&mut record, end(), 100), (Outcome::Ended, vec![]));
    granted(&mut record, "l2", "b", 100);
    assert_eq!(run(&mut record, end(), 100), (Outcome::Ended, vec![]));
}

#[test]
fn a_release_leaves_the_floor_and_is_final() {
    let mut record = fresh();
    let lease = granted(&mut record, "l1", "a", 0);
    let release = |record: &Record| Event::Release { proof: proof(record, &lease) };
    let event = release(&record);
    assert_eq!(run(&mut record, event, 10), (Outcome::Freed, vec!["remember", "released", "store"]));
    assert_eq!(record.fence.get(), 1);
    let event = release(&record);
    assert!(matches!(run(&mut record, event, 11).0, Outcome::Refused(LeaseRefusal::Expired { .. })));
    assert_eq!(granted(&mut record, "l2", "b", 12).seq.get(), 2);
}

#[test]
fn rotation_and_takeover_are_advances_of_ones_own_lease() {
    let mut record = fresh();
    let lease = granted(&mut record, "l1", "a", 0);
    let rotate = Event::Renew { proof: proof(&record, &lease), ttl: Ttl(100), rotate: Some(id("l2")) };
    let (outcome, seen) = run(&mut record, rotate, 10);
    assert!(matches!(outcome, Outcome::Granted(lease) if lease.seq.get() == 2 && lease.holder == holder("a")));
    assert_eq!(seen, ["remember", "fenced", "store", "drain", "remember", "granted", "store"]);
    assert!(matches!(run(&mut record, takeover("l3", "b"), 50).0, Outcome::Refused(LeaseRefusal::Held { .. })));
    let (outcome, _) = run(&mut record, takeover("l3", "a"), 12);
    assert!(matches!(outcome, Outcome::Refused(LeaseRefusal::Held { retry_ms: 8, .. })), "{outcome:?}");
    assert!(matches!(outcome, Outcome::Refused(LeaseRefusal::Held { takeover_after_ms: Some(10), .. })));
    let (outcome, _) = run(&mut record, takeover("l3", "a"), 20);
    assert!(matches!(outcome, Outcome::Granted(lease) if lease.seq.get() == 3));
}

#[test]
fn a_revoked_object_has_no_holder_at_a_higher_fence() {
    let mut record = fresh();
    granted(&mut record, "l1", "a", 0);
    let (outcome, seen) = run(&mut record, Event::Revoke { reason: "op".to_owned(), source: Source::Gate }, 10);
    assert_eq!((outcome, seen), (Outcome::Freed, vec!["remember", "fenced", "store", "drain", "store"]));
    assert_eq!((record.fence.get(), &record.state), (2, &State::Free { last: None }));
}

#[test]
fn only_the_advance_that_began_a_drain_can_open_the_object() {
    let record = fresh();
    let (_, effects) = record.step(acquire("l1", "a"), &at(0));
    let (Effect::Store(draining), Effect::Drain { seq, advance, then }) = (&effects[0], &effects[1]) else {
        panic!("{effects:?}")
    };
    // Meanwhile an acquire asks to wait, and a revocation overtakes.
    assert!(matches!(
        draining.step(acquire("l2", "b"), &at(1)).0,
        Outcome::Refused(LeaseRefusal::Held { lease: None, .. })
    ));
    let (_, effects) = draining.step(Event::Revoke { reason: "op".to_owned(), source: Source::Gate }, &at(2));
    let Effect::Store(overtaken) = &effects[0] else { panic!("{effects:?}") };
    let late = Event::Drained { seq: *seq, advance: *advance, then: then.clone() };
    let (outcome, effects) = overtaken.step(late.clone(), &at(3));
    assert_eq!(outcome, Outcome::Refused(LeaseRefusal::Fenced { fence: Fence::new(2) }));
    assert!(effects.is_empty());
    assert!(matches!(draining.step(late, &at(3)).0, Outcome::Granted(_)));
}

#[test]
fn the_range_of_numbers_ends_without_a_repeat() {
    let mut record = fresh();
    record.fence = Fence::new(MAX_GATE_SEQ);
    assert_eq!(run(&mut record, acquire("l1", "a"), 0), (Outcome::Refused(LeaseRefusal::SeqExhausted), vec![]));
}

#[test]
fn nothing_is_granted_by_a_clock_that_was_never_set() {
    let now = Now { wall: WallMs(0), boot: BootMs(9) };
    let (outcome, effects) = fresh().step(acquire("l1", "a"), &At { now, ..at(0) });
    assert_eq!((outcome, effects), (Outcome::Refused(LeaseRefusal::ClockUntrusted), vec![]));
}

#[test]
fn a_new_incarnation_raises_the_floor_and_voids_the_lease() {
    let mut record = fresh();
    let old = granted(&mut record, "l1", "a", 0);
    let mut record = record.rebased(Incarnation::new(1));
    assert_eq!((record.fence.get(), &record.state), ((1 << 32) + 1, &State::Free { last: None }));
    let event = renew(proof(&record, &old), 50);
    assert!(matches!(run(&mut record, event, 1).0, Outcome::Refused(LeaseRefusal::Fenced { .. })));
    assert_eq!(granted(&mut record, "l2", "b", 2).seq.get(), (1 << 32) + 2);
}
