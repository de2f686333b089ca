//! Writes of one object that were admitted and are not settled: counted under its stripe's lock.
//!
//! A write goes from waiting (nothing of it was sent) to committed (it may land), directly or through streaming (part
//! of it was sent, but not its end). An advance does not wait for waiting writes: they must be judged again before
//! anything is sent. It cancels streaming writes, and waits for committed ones. A write that is neither settled nor
//! cancelled is unknown, for as long as it may still land.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::{
    failpoints::{self, Fault},
    fence::BootMs,
};

/// Notified when a streaming write has to stop.
pub type Cancel = Arc<Notify>;

/// The stage of a write, as it is counted.
#[derive(Clone, Debug)]
pub enum Counted {
    Waiting,
    Streaming(Cancel),
    /// With the object's count of forced handovers at that time.
    Committed(u32),
}

/// How a write ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing of it has landed, or can land any more.
    Nothing,
    /// The store's answer has settled it.
    Settled,
    /// It may have landed, or may still land until then.
    Unknown { until: BootMs },
}

/// An object's writes.
#[derive(Debug, Default)]
pub(super) struct Flight {
    waiting: u32,
    committed: u32,
    /// How often a handover was forced.
    epoch: u32,
    /// Up to which retirement of a route an operator has said not to wait.
    forgiven_routes: u32,
    /// State that most objects never have.
    rare: Option<Box<Rare>>,
}

#[derive(Debug, Default)]
struct Rare {
    streaming: Vec<Cancel>,
    unknown: Option<Unknown>,
    drain: Option<Tally>,
    /// What was on its way when an operator used force. It is not waited for.
    forgiven: Forgiven,
}

#[derive(Debug, Default)]
struct Forgiven {
    committed: u32,
    streaming: Vec<Cancel>,
    until: BootMs,
}

impl Forgiven {
    fn in_flight(&self) -> bool {
        self.committed > 0 || !self.streaming.is_empty()
    }

    fn may_land(&self, now: BootMs) -> bool {
        self.in_flight() || self.until > now
    }
}

#[derive(Clone, Copy, Debug)]
struct Unknown {
    until: BootMs,
    count: u64,
}

/// What became of the writes that an advance found on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub settled: u64,
    pub cancelled: u64,
    pub unknown: u64,
}

/// What an advance found on its way to the store, and how long it waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    pub settled: u64,
    pub cancelled: u64,
    pub unknown: u64,
    pub waited_ms: u64,
}

/// What is on its way, or may still land, of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flying {
    /// Writes that may land, or have to stop first.
    pub in_flight: bool,
    /// Until when writes with an unknown outcome may still land.
    pub unknown_until: Option<BootMs>,
    /// Until when forgiven writes may still land. They are not waited for, since an operator used force.
    pub forgiven_until: Option<BootMs>,
    /// Writes are on their way by a route that a reload has changed. It is not known whose object they write.
    pub retiring: bool,
}

impl Flying {
    /// Whether an advance has nothing to wait for.
    #[must_use]
    pub fn is_drained(&self, now: BootMs) -> bool {
        failpoints::on(Fault::NoDrain) || (!self.in_flight && self.unknown_until.is_none_or(|until| until <= now))
    }

    /// Whether something may still land that is not waited for.
    #[must_use]
    pub fn is_tainted(&self, now: BootMs) -> bool {
        self.forgiven_until.is_some_and(|until| until > now)
    }
}

impl Flight {
    /// Whether its record must keep its place.
    pub(super) fn pins(&self, now: BootMs) -> bool {
        self.waiting > 0 || self.committed > 0 || self.rare.as_ref().is_some_and(|rare| rare.pins(now))
    }

    /// Whether a write is on its way, or about to be.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting > 0 || self.in_flight()
    }

    pub(super) fn admit(&mut self) {
        if !failpoints::on(Fault::NoBarrier) {
            self.waiting += 1;
        }
    }

    /// Counts a write that is admitted, and may land from this moment on.
    pub(super) fn admit_committed(&mut self) -> Counted {
        if failpoints::on(Fault::NoBarrier) {
            return Counted::Waiting;
        }
        self.committed += 1;
        self.committed_now()
    }

    /// Moves a write to another stage.
    pub(super) fn go_on(&mut self, from: &Counted, to: &Counted) {
        self.leave(from);
        match to {
            Counted::Waiting => self.waiting += 1,
            Counted::Streaming(cancel) => self.rare().streaming.push(Arc::clone(cancel)),
            Counted::Committed(_) => self.committed += 1,
        }
    }

    /// Moves a write back to waiting: nothing of it was sent. During an advance it will not get further.
    pub(super) fn back_out(&mut self, from: &Counted) {
        let is_forgiven = self.leave(from);
        self.waiting += 1;
        if !is_forgiven && let Some(tally) = self.rare.as_mut().and_then(|rare| rare.drain.as_mut()) {
            tally.cancelled += 1;
        }
    }

    /// Counts a write out. Returns whether an advance waits and nothing else is in flight.
    pub(super) fn end(&mut self, from: &Counted, how: End) -> bool {
        if self.leave(from) {
            if let End::Unknown { until } = how {
                let forgiven = &mut self.rare().forgiven;
                forgiven.until = forgiven.until.max(until);
            }
            return false;
        }
        if let End::Unknown { until } = how {
            let rare = self.rare();
            let before = rare.unknown.unwrap_or(Unknown { until, count: 0 });
            rare.unknown = Some(Unknown { until: before.until.max(until), count: before.count + 1 });
        }
        let in_flight = self.in_flight();
        let Some(tally) = self.rare.as_mut().and_then(|rare| rare.drain.as_mut()) else { return false };
        match (from, how) {
            // It was counted as cancelled when the advance began.
            (Counted::Waiting, End::Nothing) => {}
            (_, End::Nothing) => tally.cancelled += 1,
            (_, End::Settled) => tally.settled += 1,
            (_, End::Unknown { .. }) => tally.unknown += 1,
        }
        !in_flight
    }

    /// Takes a write out of its stage. Returns whether it is forgiven, and so not waited for.
    fn leave(&mut self, from: &Counted) -> bool {
        match from {
            Counted::Waiting => self.waiting -= 1,
            Counted::Committed(epoch) if *epoch == self.epoch => self.committed -= 1,
            Counted::Committed(_) => {
                self.rare().forgiven.committed -= 1;
                return true;
            }
            Counted::Streaming(cancel) => {
                let rare = self.rare();
                rare.streaming.retain(|each| !Arc::ptr_eq(each, cancel));
                let before = rare.forgiven.streaming.len();
                rare.forgiven.streaming.retain(|each| !Arc::ptr_eq(each, cancel));
                return rare.forgiven.streaming.len() < before;
            }
        }
        false
    }

    /// The stage of a write that is committed now.
    pub(super) fn committed_now(&self) -> Counted {
        Counted::Committed(self.epoch)
    }

    /// Whether an advance waits, and nothing is in flight any more.
    pub(super) fn is_drained_of_writes(&self) -> bool {
        !self.in_flight() && self.rare.as_ref().is_some_and(|rare| rare.drain.is_some())
    }

    pub(super) fn forgiven_routes(&self) -> u32 {
        self.forgiven_routes
    }

    fn in_flight(&self) -> bool {
        self.committed > 0 || self.rare.as_ref().is_some_and(|rare| !rare.streaming.is_empty())
    }

    /// What is on its way. `all_until`: until when the outcome of any object's writes is unknown.
    pub(super) fn flying(&self, all_until: BootMs) -> Flying {
        let rare = self.rare.as_ref();
        let unknown = rare.and_then(|rare| rare.unknown).map(|unknown| unknown.until);
        let forgiven_until =
            rare.map(|rare| if rare.forgiven.in_flight() { BootMs(u64::MAX) } else { rare.forgiven.until });
        let forgiven = rare.map_or(BootMs::default(), |rare| rare.forgiven.until);
        let all = (all_until > forgiven).then_some(all_until);
        Flying { in_flight: self.in_flight(), unknown_until: unknown.max(all), forgiven_until, retiring: false }
    }

    /// Begins an advance: stops the writes that can be stopped, and keeps count from here on.
    pub(super) fn begin_drain(&mut self) {
        let cancelled = u64::from(self.waiting);
        let rare = self.rare();
        let unknown = rare.unknown.map_or(0, |unknown| unknown.count);
        // If this advance overtakes another, the waiting writes are counted already.
        let tally = rare.drain.get_or_insert(Tally { cancelled, ..Tally::default() });
        tally.unknown = tally.unknown.max(unknown);
        rare.streaming.iter().for_each(|cancel| cancel.notify_one());
    }

    /// What has become so far of the writes that the advance found.
    pub(super) fn drained_so_far(&self) -> Tally {
        self.rare.as_ref().and_then(|rare| rare.drain).unwrap_or_default()
    }

    /// Ends the advance. Returns what became of the writes that it found.
    pub(super) fn end_drain(&mut self) -> Tally {
        self.rare.as_mut().and_then(|rare| rare.drain.take()).unwrap_or_default()
    }

    /// Forgives what is on its way now: it is not waited for. Later writes are still waited for. `routes`: the number
    /// of the last retirement of a route.
    pub(super) fn force(&mut self, all_until: BootMs, routes: u32) {
        self.forgiven_routes = routes;
        let committed = std::mem::take(&mut self.committed);
        self.epoch += 1;
        let rare = self.rare();
        if let Some(tally) = &mut rare.drain {
            tally.unknown += u64::from(committed) + rare.streaming.len() as u64;
        }
        rare.forgiven.committed += committed;
        rare.forgiven.streaming.append(&mut rare.streaming);
        let unknown = rare.unknown.take().map_or(BootMs::default(), |unknown| unknown.until);
        rare.forgiven.until = rare.forgiven.until.max(unknown).max(all_until);
    }

    /// Makes the outcome of this object's writes unknown until then.
    pub(super) fn set_unknown(&mut self, until: BootMs) {
        let rare = self.rare();
        let before = rare.unknown.unwrap_or(Unknown { until, count: 0 });
        rare.unknown = Some(Unknown { until: before.until.max(until), count: before.count });
    }

    /// Forgets writes that can no longer land.
    pub(super) fn tidy(&mut self, now: BootMs) {
        let in_flight = self.in_flight();
        if let Some(rare) = &mut self.rare {
            rare.unknown = rare.unknown.filter(|unknown| unknown.until > now);
            if !in_flight && rare.unknown.is_none() && rare.drain.is_none() && !rare.forgiven.may_land(now) {
                self.rare = None;
            }
        }
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }
}

impl Rare {
    fn pins(&self, now: BootMs) -> bool {
        !self.streaming.is_empty()
            || self.drain.is_some()
            || self.forgiven.may_land(now)
            || self.unknown.is_some_and(|unknown| unknown.until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: BootMs = BootMs(1_000);

    #[test]
    fn an_advance_waits_for_what_was_committed_and_not_for_what_waits() {
        let mut flight = Flight::default();
        flight.admit();
        assert!(flight.flying(BootMs(0)).is_drained(NOW));
        flight.admit();
        flight.go_on(&Counted::Waiting, &Counted::Committed(0));
        flight.begin_drain();
        assert!(!flight.flying(BootMs(0)).is_drained(NOW));
        assert!(!flight.end(&Counted::Waiting, End::Nothing));
        assert!(flight.end(&Counted::Committed(0), End::Settled));
        assert!(flight.flying(BootMs(0)).is_drained(NOW));
        assert_eq!(flight.end_drain(), Tally { settled: 1, cancelled: 1, unknown: 0 });
        assert!(!flight.pins(NOW));
    }

    #[test]
    fn a_write_that_streams_is_stopped_and_the_part_that_was_sent_is_unknown() {
        let mut flight = Flight::default();
        let cancel = Cancel::default();
        let streaming = Counted::Streaming(Arc::clone(&cancel));
        flight.admit();
        flight.go_on(&Counted::Waiting, &streaming);
        flight.begin_drain();
        assert!(flight.flying(BootMs(0)).in_flight);
        assert!(flight.end(&streaming, End::Unknown { until: BootMs(1_500) }));
        let flying = flight.flying(BootMs(0));
        assert_eq!((flying.in_flight, flying.unknown_until), (false, Some(BootMs(1_500))));
        assert!(!flying.is_drained(BootMs(1_499)) && flying.is_drained(BootMs(1_500)));
        assert_eq!(flight.end_drain().unknown, 1);
        assert!(flight.pins(NOW) && !flight.pins(BootMs(1_500)));
        flight.tidy(BootMs(1_500));
        assert!(flight.rare.is_none());
    }

    #[test]
    fn the_report_counts_what_was_forced_and_what_was_taken_back() {
        let mut flight = Flight::default();
        let streaming = Counted::Streaming(Cancel::default());
        for stage in [&Counted::Committed(0), &Counted::Committed(0), &streaming] {
            flight.admit();
            flight.go_on(&Counted::Waiting, stage);
        }
        flight.begin_drain();
        flight.back_out(&Counted::Committed(0));
        flight.force(BootMs(0), 0);
        assert_eq!(flight.end_drain(), Tally { settled: 0, cancelled: 1, unknown: 2 });
    }

    #[test]
    fn force_waits_for_nothing_and_taints_what_follows() {
        let mut flight = Flight::default();
        flight.set_unknown(BootMs(5_000));
        flight.admit();
        flight.go_on(&Counted::Waiting, &Counted::Committed(0));
        flight.force(BootMs(6_000), 0);
        let flying = flight.flying(BootMs(6_000));
        assert!(flying.is_drained(NOW) && flying.is_tainted(BootMs(9_000)), "the write may still land");
        // Later writes are still waited for.
        flight.admit();
        let later = flight.committed_now();
        flight.go_on(&Counted::Waiting, &later);
        assert!(!flight.flying(BootMs(6_000)).is_drained(NOW));
        flight.end(&later, End::Settled);
        flight.end(&Counted::Committed(0), End::Unknown { until: BootMs(7_000) });
        let flying = flight.flying(BootMs(6_000));
        assert!(flying.is_drained(NOW) && flying.is_tainted(BootMs(6_999)) && !flying.is_tainted(BootMs(7_000)));
        assert!(flight.pins(BootMs(6_999)));
        flight.tidy(BootMs(7_000));
        assert!(flight.rare.is_none());
    }

    #[test]
    fn after_an_unclean_stop_nothing_is_known_of_any_object() {
        let flying = Flight::default().flying(BootMs(2_000));
        assert!(!flying.is_drained(NOW) && flying.is_drained(BootMs(2_000)));
    }
}
