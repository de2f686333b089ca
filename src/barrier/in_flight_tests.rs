//! What becomes of an object's counts when a write goes on, ends or is dropped.

use std::{cell::Cell, rc::Rc};

use super::*;
use crate::{
    barrier::generation::Generation,
    clock::Clock,
    fence::{
        BootMs, Event as Change, Fence, Hlc, HolderId, Incarnation, LeaseId, Outcome as Done, TableKey, Ttl, WallMs,
        step::{At, Grant, Source},
        write::WriteOptions,
    },
};

const NOW: Now = Now { wall: WallMs(1_800_000_000_000), boot: BootMs(1_000) };
const BOUND: Ttl = Ttl(100);

struct Gate {
    stripes: Stripes,
    lost_track: Cell<bool>,
}

impl Barrier for Rc<Gate> {
    fn stripes(&self) -> &Stripes {
        &self.stripes
    }

    fn now(&self) -> Now {
        NOW
    }

    fn is_latched(&self) -> bool {
        false
    }

    fn lose_track(&self) {
        self.lost_track.set(true);
    }
}

/// A gate with one open object, and the object's record.
fn gate() -> (Rc<Gate>, Record) {
    let key = TableKey::from_bytes([7; 32]);
    let at = At { now: NOW, stamp: Hlc::default(), key: &key };
    let object = ObjectId::new("users").unwrap();
    let grant = Grant {
        lease_id: LeaseId::new("l").unwrap(),
        holder: HolderId::new("a").unwrap(),
        ttl: Ttl(60_000),
        request: None,
        tainted: false,
        window: None,
        source: Source::Gate,
    };
    let record = Record::unknown(object, Incarnation::default());
    let (outcome, effects) = record.step(Change::Acquire { grant, takeover_after_ms: None }, &at);
    assert!(!matches!(outcome, Done::Refused(_)), "{outcome:?}");
    let mut open = record;
    for effect in effects {
        match effect {
            crate::fence::Effect::Store(record) => open = record,
            crate::fence::Effect::Drain { seq, advance, then } => {
                let (_, effects) = open.step(Change::Drained { seq, advance, then }, &at);
                for effect in effects {
                    if let crate::fence::Effect::Store(record) = effect {
                        open = record;
                    }
                }
            }
            _ => {}
        }
    }
    assert_eq!(open.fence, Fence::new(1));
    let gate = Rc::new(Gate { stripes: Stripes::new(10), lost_track: Cell::new(false) });
    gate.stripes.publish(open.clone());
    (gate, open)
}

fn admitted(gate: &Rc<Gate>, record: &Record) -> InFlight<Rc<Gate>, NoKey> {
    let lease = record.open_lease().expect("it is open");
    let text = lease.token(&record.object).expose();
    let judge = |record: &Record, sealed| verdict::judge_text(record, sealed, &text, NOW);
    let admitted = gate.stripes.admit(record.object.as_str(), judge).expect("in memory").expect("a permit");
    let mut life = Write::new(WriteOptions::default());
    let _ = life.on(Event::Arrived { whole: false });
    let _ = life.on(Event::Permitted(Stage::Waiting));
    let route = Arc::new(Generation::default()).enter(&Clock::driven(NOW).0, BOUND);
    InFlight::new(Rc::clone(gate), life, Admission::Permitted(Permitted::waiting(admitted)), route)
}

#[test]
fn a_write_that_is_dropped_before_anything_was_sent_leaves_nothing_behind() {
    let (gate, record) = gate();
    drop(admitted(&gate, &record));
    assert!(gate.stripes.is_idle() && gate.stripes.is_all_settled(NOW.boot) && !gate.lost_track.get());
}

#[test]
fn a_write_that_is_dropped_on_its_way_is_unknown_for_its_bound() {
    let (gate, record) = gate();
    let write = admitted(&gate, &record);
    assert!(matches!(write.on(Event::Connected { whole: true }), Effect::Send(_)));
    assert!(gate.stripes.flying(&record.object).in_flight);
    drop(write);
    let flying = gate.stripes.flying(&record.object);
    assert_eq!((flying.in_flight, flying.unknown_until), (false, Some(NOW.boot.after(BOUND))));
    assert!(gate.lost_track.get(), "this run does not end in good order");
}

#[test]
fn nothing_but_its_own_judge_permits_a_write() {
    let (gate, record) = gate();
    let write = admitted(&gate, &record);
    assert_eq!(write.on(Event::Permitted(Stage::Committed)), Effect::Nothing);
    assert_eq!(write.stage(), Stage::Waiting);
    // The lease is over: the second judgement says so, and the write ends.
    gate.stripes.publish(Record { fence: Fence::new(2), ..record });
    assert_eq!(write.on(Event::Connected { whole: true }), Effect::Nothing);
    assert_eq!(write.stage(), Stage::Over(Outcome::Cancelled));
    assert!(matches!(write.take_denied(), Some(Denied { why: Denial::Refused(Refusal::Stale { .. }), .. })));
    assert!(gate.stripes.is_idle());
}

#[test]
fn a_write_marks_the_leases_of_all_its_objects_used_when_it_goes_on() {
    let (gate, users) = gate();
    let orders = Record { object: ObjectId::new("orders").unwrap(), ..users.clone() };
    gate.stripes.publish(orders.clone());
    let permit = |_: usize, _: &Record, _: bool| Ok::<_, ()>(());
    let admitted = gate.stripes.admit_all(&["users", "orders"], permit).expect("in memory").expect("permits");
    let is_used = |object| gate.stripes.view(object, |found| found.is_some_and(|(record, _)| in_use(record)));
    // The ledger publishes records that do not have the write.
    for record in [&users, &orders] {
        gate.stripes.publish(record.clone());
        assert!(!is_used(&record.object));
    }
    let waiting = Counted::Waiting;
    let mut legs: Vec<_> = admitted.iter().map(|((), place)| (*place, &waiting, Counted::Committed(0))).collect();
    assert_eq!(gate.stripes.go_on_all(&mut legs, permit), Ok(()));
    assert!(is_used(&users.object) && is_used(&orders.object));
}

fn in_use(record: &Record) -> bool {
    record.open_lease().is_some_and(|lease| lease.used)
}
