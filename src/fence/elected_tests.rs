//! Terms of leadership: the order of the checks, and what each observation leaves behind.

use std::sync::LazyLock;

use super::*;
use crate::fence::{
    Code, Event, Hlc, ObjectId, TableKey, WallMs, judge,
    outside::{Claim, Update},
    step::Outcome,
    verdict::{Presented, View},
};

static KEY: LazyLock<TableKey> = LazyLock::new(|| TableKey::from_bytes([3; 32]));
const T0: u64 = 1_800_000_000_000;

fn now(ms: u64) -> Now {
    Now { wall: WallMs(T0 + ms), boot: BootMs(1_000 + ms) }
}

fn at(ms: u64) -> At<'static> {
    At { now: now(ms), stamp: Hlc { ms: T0 + ms, logical: 1 }, key: &KEY }
}

fn fresh() -> Record {
    Record::unknown(ObjectId::new("orders").unwrap(), Incarnation::default())
}

fn term(uid: u128, transitions: u32) -> Election {
    Election { uid: Uid(uid), transitions }
}

fn id(name: &str) -> HolderId {
    HolderId::new(name).unwrap()
}

fn name() -> Arc<LeaseName> {
    Arc::new(LeaseName { namespace: "default".to_owned(), name: "orders".to_owned() })
}

fn held(election: Election, holder: &str) -> LeaseObservation {
    let holder = Some(holder).filter(|holder| !holder.is_empty()).map(id);
    LeaseObservation::Held { lease: name(), election, holder, lapsed: false }
}

fn gone() -> LeaseObservation {
    LeaseObservation::Gone { lease: name() }
}

fn store(record: &mut Record, effects: Vec<Effect>) -> Vec<Effect> {
    effects
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Store(new) => {
                *record = new;
                None
            }
            other => Some(other),
        })
        .collect()
}

/// Both steps of an observation after a write of the present term, as the ledger takes them where no older write is on
/// its way.
fn see(record: &mut Record, observation: LeaseObservation, ms: u64) -> Outcome {
    see_if(record, observation, true, ms)
}

fn see_if(record: &mut Record, observation: LeaseObservation, begins: bool, ms: u64) -> Outcome {
    let lease_id = LeaseId::new(&format!("lease-{ms}")).unwrap();
    let (outcome, effects) =
        record.step(Event::Follow { update: Update::Lease { observation, begins }, lease_id }, &at(ms));
    for effect in store(record, effects) {
        if let Effect::Drain { seq, advance, then } = effect {
            let (_, effects) = record.step(Event::Drained { seq, advance, then }, &at(ms));
            store(record, effects);
        }
    }
    outcome
}

fn claimant(election: Election, until: u64) -> Claimant {
    Claimant { election, lease: name(), term: Some(Arc::new(Term::until(now(until).boot))), holder: None }
}

/// The verdict on a write of this term, whose Lease is known to be held until 10 s.
fn verdict(record: &Record, election: Election, ms: u64) -> Result<u64, String> {
    judged(record, claimant(election, 10_000), ms)
}

fn judged(record: &Record, claimant: Claimant, ms: u64) -> Result<u64, String> {
    let view = View::Known { record, sealed: false };
    judge(view, &Presented::Outside(Claim::Term(claimant)), now(ms)).map(|permit| permit.seq().get()).map_err(
        |denial| match denial {
            Denial::Refused(refusal) => refusal.code().as_str().to_owned(),
            Denial::Unseen(_) => "unseen".to_owned(),
            Denial::Lapsed(_) => "lapsed".to_owned(),
            other => format!("{other:?}"),
        },
    )
}

fn refused(code: Code) -> Result<u64, String> {
    Err(code.as_str().to_owned())
}

fn unseen() -> Result<u64, String> {
    Err("unseen".to_owned())
}

#[test]
fn each_term_gets_the_next_number_and_older_ones_are_stale() {
    let mut record = fresh();
    assert_eq!(verdict(&record, term(1, 0), 0), unseen());
    assert_eq!(see(&mut record, held(term(1, 0), "a"), 1), Outcome::Advancing);
    assert_eq!(verdict(&record, term(1, 0), 2), Ok(1));
    // The API server has to be asked about a later one first.
    assert_eq!(verdict(&record, term(1, 1), 2), unseen());
    see(&mut record, held(term(1, 4), "b"), 3);
    assert_eq!(verdict(&record, term(1, 4), 4), Ok(2));
    for old in 0..4 {
        assert_eq!(verdict(&record, term(1, old), 4), refused(Code::WriteStaleFence), "{old}");
    }
    // An observation of an earlier term, or of the present one, changes nothing.
    assert!(matches!(see(&mut record, held(term(1, 3), "x"), 5), Outcome::Refused(LeaseRefusal::Fenced { .. })));
    assert_eq!(see(&mut record, held(term(1, 4), "b"), 5), Outcome::Unchanged);
    assert_eq!(verdict(&record, term(1, 4), 6), Ok(2));
}

#[test]
fn a_lease_that_was_made_anew_counts_from_0_and_the_old_one_is_stale_for_ever() {
    let mut record = fresh();
    see(&mut record, held(term(1, 7), "a"), 1);
    see(&mut record, gone(), 2);
    for gone in [7, 8] {
        assert_eq!(verdict(&record, term(1, gone), 3), refused(Code::WriteStaleFence), "{gone}");
    }
    assert_eq!(see(&mut record, gone(), 3), Outcome::Unchanged);
    assert_eq!(verdict(&record, term(2, 0), 3), unseen());
    see(&mut record, held(term(2, 0), "b"), 4);
    assert_eq!(verdict(&record, term(2, 0), 5), Ok(3));
    // Whatever the reason that it is seen again: an API server that was set back, or an answer that was late.
    for back in [7, 8] {
        let seen = see(&mut record, held(term(1, back), "a"), 6);
        assert!(matches!(seen, Outcome::Refused(LeaseRefusal::Fenced { .. })), "{back}");
        assert_eq!(verdict(&record, term(1, back), 6), refused(Code::WriteStaleFence));
    }
    // Also where the gate never saw that it was gone.
    see(&mut record, held(term(3, 0), "c"), 7);
    assert_eq!(verdict(&record, term(2, 0), 8), refused(Code::WriteStaleFence));
    assert_eq!(verdict(&record, term(2, 9), 8), refused(Code::WriteStaleFence));
    assert_eq!(verdict(&record, term(3, 0), 8), Ok(4));
}

#[test]
fn a_lease_counts_as_held_for_as_long_as_it_is_seen_renewed() {
    let mut record = fresh();
    see(&mut record, held(term(1, 0), "a"), 1);
    assert_eq!(judged(&record, claimant(term(1, 0), 5_000), 4_999), Ok(1));
    assert_eq!(judged(&record, claimant(term(1, 0), 5_000), 5_000), Err("lapsed".to_owned()));
    assert_eq!(judged(&record, Claimant { term: None, ..claimant(term(1, 0), 0) }, 1), Err("lapsed".to_owned()));
    // Once an answer has said that it is over, it stays over.
    let lapsed = LeaseObservation::Held { lease: name(), election: term(1, 0), holder: Some(id("a")), lapsed: true };
    assert_eq!(see(&mut record, lapsed, 5_000), Outcome::Ended);
    assert_eq!(verdict(&record, term(1, 0), 5_001), refused(Code::LeaseExpired));
    assert_eq!(see(&mut record, held(term(1, 0), "a"), 5_002), Outcome::Unchanged);
    assert_eq!(verdict(&record, term(1, 0), 5_003), refused(Code::LeaseExpired));
    see(&mut record, held(term(1, 1), "a"), 5_004);
    assert_eq!(verdict(&record, term(1, 1), 5_005), Ok(2));
}

#[test]
fn a_lease_that_was_given_back_is_over() {
    let mut record = fresh();
    see(&mut record, held(term(1, 0), "a"), 1);
    assert_eq!(see(&mut record, held(term(1, 0), ""), 2), Outcome::Ended);
    assert_eq!(verdict(&record, term(1, 0), 3), refused(Code::LeaseExpired));
    // Given back before the first read: its term is known, and has no holder.
    see(&mut record, held(term(1, 1), ""), 4);
    assert_eq!(verdict(&record, term(1, 0), 5), refused(Code::WriteStaleFence));
    assert_eq!(verdict(&record, term(1, 1), 5), unseen());
    assert_eq!(see(&mut record, held(term(1, 1), ""), 6), Outcome::Unchanged);
    // Writers got the answer that this term is over; a holder that takes it without a transition changes nothing.
    assert_eq!(see(&mut record, held(term(1, 1), "b"), 7), Outcome::Unchanged);
    assert_eq!(verdict(&record, term(1, 1), 8), unseen());
    see(&mut record, held(term(1, 2), "b"), 9);
    assert_eq!(verdict(&record, term(1, 2), 10), Ok(3));
}

#[test]
fn a_write_with_another_token_begins_no_term() {
    let mut record = fresh();
    for observation in [held(term(1, 0), "a"), gone()] {
        assert_eq!(see_if(&mut record, observation, false, 1), Outcome::Unchanged);
        assert_eq!(record, fresh(), "nothing is kept of it");
    }
    see(&mut record, held(term(1, 0), "a"), 2);
    assert_eq!(see_if(&mut record, elsewhere(), false, 3), Outcome::Unchanged, "its route has changed");
    assert_eq!(verdict(&record, term(1, 0), 4), Ok(1));
    // An observation of the Lease that the record knows always counts.
    see_if(&mut record, held(term(1, 1), "b"), false, 5);
    assert_eq!(
        (verdict(&record, term(1, 0), 6), verdict(&record, term(1, 1), 6)),
        (refused(Code::WriteStaleFence), Ok(2))
    );
}

/// Another Lease, where a route has changed.
fn other() -> Arc<LeaseName> {
    Arc::new(LeaseName { namespace: "default".to_owned(), name: "typo".to_owned() })
}

fn elsewhere() -> LeaseObservation {
    LeaseObservation::Held { lease: other(), election: term(2, 0), holder: Some(id("b")), lapsed: false }
}

#[test]
fn a_term_that_was_over_stays_so_when_its_route_is_changed_and_changed_back() {
    type End = fn(&mut Record);
    let ends: [(&str, End); 5] = [
        ("revoked", |record| {
            let (_, effects) = record.step(Event::Revoke { reason: "stuck".to_owned(), source: Source::Gate }, &at(2));
            store(record, effects);
        }),
        ("expired", |record| {
            let lapsed =
                LeaseObservation::Held { lease: name(), election: term(1, 3), holder: Some(id("a")), lapsed: true };
            see(record, lapsed, 2);
        }),
        ("given back", |record| drop(see(record, held(term(1, 3), ""), 2))),
        ("two holders", |record| drop(see(record, held(term(1, 3), "c"), 2))),
        ("deleted", |record| drop(see(record, gone(), 2))),
    ];
    for (how, end) in ends {
        let mut record = fresh();
        see(&mut record, held(term(1, 3), "a"), 1);
        end(&mut record);
        see(&mut record, elsewhere(), 3);
        assert_eq!(verdict(&record, term(1, 3), 4), refused(Code::WriteStaleFence), "{how}");
        for back in [3, 2] {
            let seen = see(&mut record, held(term(1, back), "c"), 5);
            assert!(matches!(seen, Outcome::Refused(LeaseRefusal::Fenced { .. })), "{how}: {seen:?}");
        }
        let after = see(&mut record, held(term(1, 4), "c"), 6);
        assert_eq!(matches!(after, Outcome::Refused(_)), how == "deleted", "{how}: {after:?}");
        // And round again.
        see(&mut record, elsewhere(), 7);
        assert_eq!(verdict(&record, term(1, 3), 8), refused(Code::WriteStaleFence), "{how}");
    }
    // A Lease without a holder when it was first seen: its writers got the answer that the term is over.
    let mut record = fresh();
    see(&mut record, held(term(1, 3), ""), 1);
    see(&mut record, elsewhere(), 2);
    assert_eq!(verdict(&record, term(1, 3), 3), refused(Code::WriteStaleFence));
}

#[test]
fn another_lease_by_a_changed_route_begins_a_term_and_retires_none() {
    let mut record = fresh();
    see(&mut record, held(term(1, 3), "a"), 1);
    // A deleted Lease of that name says nothing about the Lease that was seen.
    assert_eq!(see(&mut record, LeaseObservation::Gone { lease: other() }, 2), Outcome::Unchanged);
    assert_eq!(verdict(&record, term(1, 3), 3), Ok(1));
    see(&mut record, elsewhere(), 4);
    assert_eq!((verdict(&record, term(2, 0), 5), verdict(&record, term(1, 3), 5)), (Ok(2), unseen()));
    assert_eq!(verdict(&record, term(1, 2), 5), refused(Code::WriteStaleFence));
    // When the route leads back, its holder goes on under a new number.
    see(&mut record, held(term(1, 3), "a"), 6);
    assert_eq!((verdict(&record, term(1, 3), 7), verdict(&record, term(2, 0), 7)), (Ok(3), unseen()));
}

#[test]
fn a_holder_that_changes_while_it_drains_shuts_both_out() {
    for after in ["b", ""] {
        let mut record = fresh();
        let lease_id = LeaseId::new("lease-1").unwrap();
        let (_, effects) = record.step(
            Event::Follow { update: Update::Lease { observation: held(term(1, 0), "a"), begins: true }, lease_id },
            &at(1),
        );
        store(&mut record, effects);
        assert!(matches!(record.state, State::Draining { .. }));
        see(&mut record, held(term(1, 0), after), 2);
        assert_eq!(verdict(&record, term(1, 0), 3), refused(Code::WriteStaleFence), "{after:?}");
    }
}

#[test]
fn a_lease_call_takes_over_where_a_route_goes_back_to_the_gate() {
    let mut record = fresh();
    see(&mut record, held(term(1, 0), "a"), 1);
    let grant = Grant { source: Source::Gate, ttl: Ttl(1_000), ..grant(LeaseId::new("own").unwrap(), id("x")) };
    let (outcome, effects) = record.step(Event::Acquire { grant, takeover_after_ms: None }, &at(2));
    assert_eq!(outcome, Outcome::Advancing);
    store(&mut record, effects);
    assert_eq!(verdict(&record, term(1, 0), 3), refused(Code::WriteStaleFence));
}

#[test]
fn two_holders_with_one_token_are_both_shut_out() {
    let mut record = fresh();
    see(&mut record, held(term(1, 0), "a"), 1);
    see(&mut record, held(term(1, 0), "b"), 2);
    assert_eq!(verdict(&record, term(1, 0), 3), refused(Code::WriteStaleFence));
    see(&mut record, held(term(1, 1), "b"), 4);
    assert_eq!(verdict(&record, term(1, 1), 5), Ok(3));
}

#[test]
fn who_it_says_it_is_must_be_whom_the_lease_names() {
    let mut record = fresh();
    see(&mut record, held(term(1, 0), "a"), 1);
    let by = |holder: &str| Claimant { holder: Some(id(holder)), ..claimant(term(1, 0), 9_000) };
    assert_eq!(judged(&record, by("a"), 2), Ok(1));
    assert_eq!(judged(&record, by("b"), 2), refused(Code::FenceTokenInvalid));
}

#[test]
fn what_moves_the_fence_otherwise_ends_the_term() {
    let mut record = fresh();
    see(&mut record, held(term(1, 0), "a"), 1);
    let (_, effects) = record.step(Event::Revoke { reason: "stuck".to_owned(), source: Source::Gate }, &at(2));
    let (seq, advance) = match &store(&mut record, effects)[..] {
        [.., Effect::Drain { seq, advance, .. }] => (*seq, *advance),
        other => panic!("{other:?}"),
    };
    assert_eq!(verdict(&record, term(1, 0), 3), refused(Code::WriteStaleFence));
    let (_, effects) = record.step(Event::Drained { seq, advance, then: None }, &at(3));
    store(&mut record, effects);
    assert_eq!(verdict(&record, term(1, 0), 4), refused(Code::WriteStaleFence));
    assert!(matches!(see(&mut record, held(term(1, 0), "a"), 5), Outcome::Refused(LeaseRefusal::Fenced { .. })));
    see(&mut record, held(term(1, 1), "a"), 6);
    assert_eq!(verdict(&record, term(1, 1), 7), Ok(3));
}

#[test]
fn draining_comes_before_the_term_is_looked_at_and_a_crash_in_it_opens_for_the_same() {
    let mut record = fresh();
    let lease_id = LeaseId::new("lease-1").unwrap();
    let (_, effects) = record.step(
        Event::Follow {
            update: Update::Lease { observation: held(term(1, 0), "a"), begins: true },
            lease_id: lease_id.clone(),
        },
        &at(1),
    );
    store(&mut record, effects);
    assert_eq!(verdict(&record, term(1, 0), 2), refused(Code::FenceDraining));
    assert!(matches!(record.state, State::Draining { opens: Some(_), .. }));
    let grant = record.elected_grant(lease_id.clone()).expect("the elected holder gets it");
    assert_eq!((grant.holder.as_str(), grant.source), ("a", Source::Kubernetes));
    // Where the drain ended without a holder, the same term may open the object.
    record.state = State::Free { last: None };
    assert_eq!(verdict(&record, term(1, 0), 3), unseen());
    see(&mut record, held(term(1, 0), "a"), 4);
    assert_eq!(verdict(&record, term(1, 0), 5), Ok(2));
}

#[test]
fn where_part_of_the_past_is_lost_an_operator_must_say_which_term_may_write() {
    let mut record = fresh();
    see(&mut record, held(term(1, 5), "a"), 1);
    let mut record = record.rebased(Incarnation::new(1));
    assert_eq!(verdict(&record, term(1, 4), 2), refused(Code::WriteStaleFence));
    for election in [term(1, 5), term(1, 6), term(2, 0)] {
        assert_eq!(verdict(&record, election, 2), refused(Code::ObjectLocked), "{election}");
        assert!(matches!(see(&mut record, held(election, "b"), 2), Outcome::Refused(LeaseRefusal::Locked { .. })));
    }
    let confirm = |record: &mut Record, election| {
        let lowest = Claim::Term(Claimant { election, lease: name(), term: None, holder: None });
        let (outcome, effects) = record.step(Event::Confirm { lowest }, &at(3));
        store(record, effects);
        outcome
    };
    assert!(matches!(confirm(&mut record, term(1, 4)), Outcome::Refused(LeaseRefusal::Fenced { .. })));
    let mut same = record.clone();
    assert_eq!(confirm(&mut same, term(1, 5)), Outcome::Freed);
    see(&mut same, held(term(1, 5), "a"), 4);
    assert_eq!(verdict(&same, term(1, 5), 5), Ok((1 << 32) + 2));
    assert_eq!(confirm(&mut record, term(2, 3)), Outcome::Freed);
    assert_eq!(verdict(&record, term(1, 9), 5), refused(Code::WriteStaleFence));
    assert_eq!(verdict(&record, term(2, 2), 5), refused(Code::WriteStaleFence));
    assert_eq!(verdict(&record, term(2, 3), 5), unseen());
    assert_eq!(confirm(&mut record, term(2, 9)), Outcome::Unchanged);
    // An object without a row is locked in the same way.
    let unknown = Record::unknown(ObjectId::new("x").unwrap(), Incarnation::new(1));
    assert_eq!(verdict(&unknown, term(1, 0), 5), refused(Code::ObjectLocked));
}

#[test]
fn so_many_uids_are_remembered() {
    let mut record = fresh();
    let last = FLOORS_MAX as u128 + 10;
    for uid in 0..=last {
        see(&mut record, held(term(uid, 0), "a"), 1 + u64::try_from(uid).unwrap());
    }
    let floors = &record.elected.as_ref().unwrap().floors;
    assert_eq!((floors.len(), floors.last()), (FLOORS_MAX, Some(&Floor { uid: Uid(last - 1), first: Floor::GONE })));
    assert_eq!(verdict(&record, term(last - 1, 5), 900), refused(Code::WriteStaleFence));
}
