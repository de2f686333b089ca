//! What the ledger has to do later: end leases, dismiss waiting callers, do its own upkeep each second.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::lease_ids::Leases;
use crate::fence::{BootMs, LeaseId, ObjectId};

/// Something that is due at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Lease(ObjectId, LeaseId),
    Waiter(ObjectId, u64),
    /// An advance whose unknown writes have passed their bound.
    Advance(u64),
    /// A caller has waited long enough for an advance.
    Answer(u64),
    Second,
}

#[derive(Debug)]
struct TimerEntry {
    at: BootMs,
    /// Of two timers for one instant, the earlier entry comes first, so that the order is always the same.
    turn: u64,
    due: Due,
}

impl PartialEq for TimerEntry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.turn) == (other.at, other.turn)
    }
}

impl Eq for TimerEntry {}

impl PartialOrd for TimerEntry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TimerEntry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.turn).cmp(&(other.at, other.turn))
    }
}

/// How many timers without a purpose may remain. Above this number, and beside the waiters' timers, they are
/// removed when they outnumber the live ones.
const SPARE: usize = 16_384;

/// All that is due later. A live lease has one timer: a renewal adds none, and the timer reads the new deadline
/// when it fires.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<TimerEntry>>,
    armed: Leases,
    turn: u64,
}

impl Timers {
    pub(super) fn push(&mut self, at: BootMs, due: Due) {
        self.turn += 1;
        self.heap.push(Reverse(TimerEntry { at, turn: self.turn, due }));
    }

    /// Sets the timer for a lease's deadline, unless there is one.
    pub(super) fn arm(&mut self, at: BootMs, object: &ObjectId, lease: &LeaseId) {
        if self.armed.insert(lease.clone()) {
            self.push(at, Due::Lease(object.clone(), lease.clone()));
        }
    }

    /// Marks the timer of a lease that has ended: it has nothing to do when it fires.
    pub(super) fn disarm(&mut self, lease: &LeaseId) {
        self.armed.remove(lease);
        // Most timers may be for leases that were released long before their deadlines.
        if self.heap.len() > 2 * self.armed.len() + SPARE {
            let armed = &self.armed;
            self.heap.retain(|Reverse(entry)| match &entry.due {
                Due::Lease(_, lease) => armed.contains(lease),
                Due::Waiter(..) | Due::Advance(_) | Due::Answer(_) | Due::Second => true,
            });
        }
    }

    /// How many leases have a timer: the live ones.
    pub(super) fn live(&self) -> usize {
        self.armed.len()
    }

    pub(super) fn next_at(&self) -> Option<BootMs> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// The next timer that is due by now.
    pub(super) fn pop_due(&mut self, now: BootMs) -> Option<Due> {
        while self.next_at().is_some_and(|at| at <= now) {
            let Reverse(entry) = self.heap.pop()?;
            match &entry.due {
                Due::Lease(_, lease) if !self.armed.remove(lease) => {}
                Due::Lease(..) | Due::Waiter(..) | Due::Advance(_) | Due::Answer(_) | Due::Second => {
                    return Some(entry.due);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_of_ended_leases_do_not_pile_up() {
        let mut timers = Timers::default();
        let object = ObjectId::new("users").unwrap();
        for n in 0..4 * SPARE {
            let lease = LeaseId::new(&format!("l{n}")).unwrap();
            timers.arm(BootMs(1_000_000), &object, &lease);
            timers.disarm(&lease);
        }
        assert!(timers.heap.len() <= SPARE + 1, "{}", timers.heap.len());
    }

    #[test]
    fn what_is_due_first_comes_first_and_an_ended_lease_not_at_all() {
        let mut timers = Timers::default();
        let object = ObjectId::new("users").unwrap();
        let [one, two] = ["l1", "l2"].map(|id| LeaseId::new(id).unwrap());
        timers.arm(BootMs(20), &object, &one);
        timers.arm(BootMs(10), &object, &two);
        timers.arm(BootMs(5), &object, &two);
        timers.push(BootMs(20), Due::Second);
        assert_eq!((timers.live(), timers.next_at()), (2, Some(BootMs(10))));
        timers.disarm(&two);
        assert_eq!(timers.pop_due(BootMs(19)), None);
        assert_eq!(timers.pop_due(BootMs(20)), Some(Due::Lease(object, one)));
        assert_eq!(timers.pop_due(BootMs(20)), Some(Due::Second));
        assert_eq!((timers.pop_due(BootMs(99)), timers.live()), (None, 0));
    }
}
