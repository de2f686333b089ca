//! Outside numbers: the order of the checks, and what each leaves behind.

use std::sync::LazyLock;

use super::*;
use crate::fence::{
    BootMs, Event, Hlc, LeaseId, ObjectId, TableKey, WallMs, judge,
    outside::Claim,
    verdict::{Presented, View},
};

static KEY: LazyLock<TableKey> = LazyLock::new(|| TableKey::from_bytes([3; 32]));
const T0: u64 = 1_800_000_000_000;
const JUMP: u64 = 1_000;

fn now(ms: u64) -> Now {
    Now { wall: WallMs(T0 + ms), boot: BootMs(1_000 + ms) }
}

fn at(ms: u64) -> At<'static> {
    At { now: now(ms), stamp: Hlc { ms: T0 + ms, logical: 1 }, key: &KEY }
}

fn seq(number: u64) -> LeaseSeq {
    LeaseSeq::new(number).unwrap()
}

fn number(of: u64, silence: Ttl) -> Number {
    Number { seq: seq(of), limits: ExternalLimits { max_jump: JUMP, silence } }
}

fn fresh() -> Record {
    Record::unknown(ObjectId::new("users").unwrap(), Incarnation::default())
}

/// A writer brings this number.
fn by(of: u64, silence: Ttl) -> Event {
    Event::Follow { update: Update::Number(number(of, silence)), lease_id: LeaseId::new(&format!("l{of}")).unwrap() }
}

/// An operator confirms this number.
fn confirm(lowest: u64) -> Event {
    Event::Confirm { lowest: Claim::Number(number(lowest, Ttl::FOR_EVER)) }
}

/// Brings a number, and drains at once.
fn follow(record: &mut Record, of: u64, silence: Ttl, ms: u64) -> Outcome {
    let (outcome, effects) = record.step(by(of, silence), &at(ms));
    take(record, effects, ms).unwrap_or(outcome)
}

fn take(record: &mut Record, effects: Vec<Effect>, ms: u64) -> Option<Outcome> {
    let mut last = None;
    for effect in effects {
        match effect {
            Effect::Store(new) => {
                assert!(new.fence >= record.fence, "a fence went down");
                *record = new;
            }
            Effect::Drain { seq, advance, then } => {
                let (opened, more) = record.step(Event::Drained { seq, advance, then }, &at(ms));
                take(record, more, ms);
                last = Some(opened);
            }
            Effect::Remember(_) | Effect::Announce(_) => {}
        }
    }
    last
}

fn verdict(record: &Record, of: u64, ms: u64) -> &'static str {
    let presented = Presented::Outside(Claim::Number(number(of, Ttl::FOR_EVER)));
    match judge(View::Known { record, sealed: false }, &presented, now(ms)) {
        Ok(permit) => {
            assert_eq!(permit.seq(), seq(of));
            "forwarded"
        }
        Err(Denial::Refused(refusal)) => refusal.code().as_str(),
        Err(Denial::Unseen(_) | Denial::Lapsed(_)) => unreachable!("no Lease governs it"),
        Err(Denial::Overdue(_)) => "overdue",
        Err(Denial::Behind(behind)) => {
            assert_eq!(behind.seq(), Some(seq(of)));
            "behind"
        }
    }
}

#[test]
fn a_number_has_one_spelling() {
    let limits = ExternalLimits { max_jump: JUMP, silence: Ttl::FOR_EVER };
    let read = |text: &str| Number::parse(text, limits).map(|number| number.seq.get());
    assert_eq!(read("1"), Ok(1));
    assert_eq!(read("18446744073709551615"), Ok(u64::MAX));
    for wrong in ["", "0", "01", "+1", "-1", "1 ", " 1", "1.0", "0x1", "1e3", "18446744073709551616", "fg1.1.dQ.x", "١"]
    {
        assert_eq!(read(wrong), Err(TokenFault::Number), "{wrong:?}");
    }
}

#[test]
fn higher_moves_the_fence_equal_writes_and_lower_is_stale_for_ever() {
    let mut record = fresh();
    assert_eq!(verdict(&record, 57, 0), "behind");
    assert!(matches!(follow(&mut record, 57, Ttl::FOR_EVER, 0), Outcome::Granted(_)));
    assert_eq!((record.fence.get(), record.numbers), (57, Numbers::External));
    assert_eq!(verdict(&record, 57, u64::MAX / 4), "CLOCK_UNTRUSTED");
    assert_eq!(verdict(&record, 57, 400_000_000_000), "forwarded", "silence does not matter");
    assert_eq!(verdict(&record, 56, 0), "WRITE_STALE_FENCE");
    assert_eq!(verdict(&record, 58, 0), "behind");
    assert!(matches!(follow(&mut record, 60, Ttl::FOR_EVER, 0), Outcome::Granted(_)));
    assert_eq!(verdict(&record, 57, 0), "WRITE_STALE_FENCE");
    assert!(matches!(follow(&mut record, 57, Ttl::FOR_EVER, 0), Outcome::Refused(LeaseRefusal::Fenced { .. })));
    assert_eq!(follow(&mut record, 60, Ttl::FOR_EVER, 0), Outcome::Unchanged, "it is there");
    assert_eq!(record.fence.get(), 60);
}

#[test]
fn the_first_may_be_any_number_and_the_next_must_not_be_too_far() {
    let mut record = fresh();
    assert!(matches!(follow(&mut record, u64::MAX - 5_000, Ttl::FOR_EVER, 0), Outcome::Granted(_)));
    let fence = record.fence.get();
    assert_eq!(verdict(&record, fence + JUMP, 0), "behind");
    assert_eq!(verdict(&record, fence + JUMP + 1, 0), "WRITE_FENCE_AHEAD");
    assert!(matches!(
        follow(&mut record, fence + JUMP + 1, Ttl::FOR_EVER, 0),
        Outcome::Refused(LeaseRefusal::Ahead { .. })
    ));
    assert!(matches!(follow(&mut record, fence + JUMP, Ttl::FOR_EVER, 0), Outcome::Granted(_)));
}

#[test]
fn a_draining_fence_is_for_its_number_and_a_higher_one_overtakes() {
    let mut record = fresh();
    follow(&mut record, 5, Ttl::FOR_EVER, 0);
    let (outcome, effects) = record.step(by(6, Ttl(500)), &at(1));
    assert_eq!(outcome, Outcome::Advancing);
    for effect in effects {
        if let Effect::Store(new) = effect {
            record = new;
        }
    }
    assert!(matches!(record.state, State::Draining { opens: Some(Ttl(500)), .. }));
    assert_eq!((verdict(&record, 5, 1), verdict(&record, 6, 1)), ("WRITE_STALE_FENCE", "FENCE_DRAINING"));
    assert_eq!(follow(&mut record.clone(), 6, Ttl(500), 1), Outcome::Unchanged, "the holder of 6 waits");
    assert_eq!(verdict(&record, 7, 1), "behind");
    assert!(matches!(follow(&mut record, 7, Ttl::FOR_EVER, 2), Outcome::Granted(_)));
    assert_eq!((verdict(&record, 6, 2), verdict(&record, 7, 2)), ("WRITE_STALE_FENCE", "forwarded"));
}

#[test]
fn a_holder_that_is_silent_too_long_is_gone_and_a_write_ends_the_silence() {
    let mut record = fresh();
    follow(&mut record, 5, Ttl(500), 0);
    assert!(record.ends_by_silence(now(499).boot) && !record.ends_by_silence(now(500).boot));
    assert_eq!((verdict(&record, 5, 499), verdict(&record, 5, 500)), ("forwarded", "overdue"));
    record.mark_used(|| now(400).boot);
    assert_eq!((verdict(&record, 5, 899), verdict(&record, 5, 900)), ("forwarded", "overdue"));
    let lease = record.open_lease().unwrap();
    assert_eq!(lease.expires_at, WallMs(T0 + 900));
    let (outcome, effects) = record.step(Event::End { lease_id: lease.lease_id.clone() }, &at(900));
    assert_eq!(outcome, Outcome::Ended);
    take(&mut record, effects, 900);
    assert_eq!((verdict(&record, 5, 901), verdict(&record, 6, 901)), ("LEASE_EXPIRED", "behind"));
    assert!(matches!(follow(&mut record, 5, Ttl(500), 901), Outcome::Refused(LeaseRefusal::Expired { .. })));
}

#[test]
fn a_revoked_number_is_over_and_the_lock_service_says_who_has_the_next() {
    let mut record = fresh();
    follow(&mut record, 5, Ttl::FOR_EVER, 0);
    let (_, effects) = record.step(Event::Revoke { reason: "stuck".to_owned(), source: Source::External }, &at(1));
    take(&mut record, effects, 1);
    assert_eq!((record.fence.get(), record.numbers), (6, Numbers::External));
    assert_eq!((verdict(&record, 5, 1), verdict(&record, 6, 1)), ("WRITE_STALE_FENCE", "behind"));
    assert!(matches!(follow(&mut record, 6, Ttl::FOR_EVER, 1), Outcome::Granted(_)));
    assert_eq!(verdict(&record, 6, 1), "forwarded");
}

#[test]
fn a_number_that_the_gate_itself_has_granted_is_of_no_lock_service() {
    let mut record = fresh();
    let own = Grant { source: Source::Gate, ..grant(LeaseId::new("l1").unwrap(), Ttl(100)) };
    let (_, effects) = record.step(Event::Acquire { grant: own, takeover_after_ms: None }, &at(0));
    take(&mut record, effects, 0);
    assert_eq!((record.fence.get(), verdict(&record, 1, 0)), (1, "FENCE_TOKEN_INVALID"));
    assert!(matches!(follow(&mut record, 1, Ttl::FOR_EVER, 0), Outcome::Refused(LeaseRefusal::TokenMismatch)));
    assert!(matches!(follow(&mut record, 2, Ttl::FOR_EVER, 0), Outcome::Granted(_)), "a higher one ends it");
    // And back again: the holder of the outside lock is fenced, and the gate's own numbers go on above its number.
    let own = Grant { source: Source::Gate, ..grant(LeaseId::new("l3").unwrap(), Ttl(100)) };
    assert!(record.open_lease().is_some_and(|lease| lease.is_live(now(1))));
    let (_, effects) = record.step(Event::Acquire { grant: own, takeover_after_ms: None }, &at(1));
    take(&mut record, effects, 1);
    assert_eq!((record.fence.get(), record.numbers), (3, Numbers::Gate));
}

#[test]
fn a_lost_past_locks_until_an_operator_says_what_may_write() {
    let mut record = fresh();
    follow(&mut record, 50, Ttl::FOR_EVER, 0);
    let mut record = record.rebased(Incarnation::new(2));
    assert_eq!((record.fence.get(), record.lost, record.incarnation), (50, 2 << 32, Incarnation::default()));
    assert_eq!(record.clone().rebased(Incarnation::new(2)), record, "reading it again changes nothing");
    assert_eq!((verdict(&record, 49, 0), verdict(&record, 50, 0)), ("WRITE_STALE_FENCE", "OBJECT_LOCKED"));
    assert_eq!(verdict(&record, 51, 0), "OBJECT_LOCKED");
    assert!(matches!(follow(&mut record, 51, Ttl::FOR_EVER, 0), Outcome::Refused(LeaseRefusal::Locked { .. })));
    let (outcome, _) = record.step(confirm(49), &at(1));
    assert!(matches!(outcome, Outcome::Refused(LeaseRefusal::Fenced { .. })), "that one is known to be stale");
    let (outcome, effects) = record.step(confirm(57), &at(1));
    assert_eq!(outcome, Outcome::Freed);
    take(&mut record, effects, 1);
    assert_eq!((record.fence.get(), record.lost, record.incarnation), (57, 0, Incarnation::new(2)));
    assert_eq!((verdict(&record, 56, 1), verdict(&record, 57, 1)), ("WRITE_STALE_FENCE", "behind"));
    assert_eq!(record.step(confirm(60), &at(1)).0, Outcome::Unchanged, "it is not locked");
}

#[test]
fn an_object_without_a_row_is_locked_too_where_a_past_was_lost() {
    let mut record = Record::unknown(ObjectId::new("users").unwrap(), Incarnation::new(1));
    assert_eq!((verdict(&record, 57, 0), verdict(&record, 1 << 40, 0)), ("OBJECT_LOCKED", "OBJECT_LOCKED"));
    let (_, effects) = record.step(confirm(57), &at(1));
    // The floor was the table's own, which says nothing about outside numbers.
    let [Effect::Store(confirmed)] = effects.as_slice() else { panic!("one row") };
    record = confirmed.clone();
    assert_eq!((record.fence.get(), record.incarnation), (57, Incarnation::new(1)));
    assert_eq!((verdict(&record, 56, 1), verdict(&record, 57, 1)), ("WRITE_STALE_FENCE", "behind"));
}

#[test]
fn a_revocation_before_the_first_number_does_not_lock_it_out_when_a_past_is_lost() {
    let revoke = || Event::Revoke { reason: "x".to_owned(), source: Source::External };
    let mut record = fresh();
    let (_, effects) = record.step(revoke(), &at(0));
    take(&mut record, effects, 0);
    assert_eq!((record.fence.get(), record.numbers), (1, Numbers::External));
    let mut record = record.rebased(Incarnation::new(1));
    assert_eq!((record.fence.get(), verdict(&record, 57, 0)), (1, "OBJECT_LOCKED"));
    let (_, effects) = record.step(confirm(57), &at(1));
    take(&mut record, effects, 1);
    assert_eq!(verdict(&record, 57, 1), "behind");
    // Without a row, there is nothing to move: outside numbers might never reach the new fence.
    let unknown = Record::unknown(ObjectId::new("users").unwrap(), Incarnation::new(1));
    assert!(matches!(unknown.step(revoke(), &at(0)).0, Outcome::Refused(LeaseRefusal::Locked { .. })));
}

#[test]
fn the_gates_own_numbers_go_on_above_whatever_was_lost() {
    let mut record = fresh();
    follow(&mut record, 50, Ttl::FOR_EVER, 0);
    let mut record = record.rebased(Incarnation::new(1));
    let own = Grant { source: Source::Gate, ..grant(LeaseId::new("l1").unwrap(), Ttl(100)) };
    let (_, effects) = record.step(Event::Acquire { grant: own, takeover_after_ms: None }, &at(1));
    take(&mut record, effects, 1);
    assert_eq!((record.fence.get(), record.lost, record.incarnation), ((1 << 32) + 51, 0, Incarnation::new(1)));
}
