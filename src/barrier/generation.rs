//! Versions of a route. A reload that changes a route starts a new generation of it. Writes of the older one are
//! counted here, in every mode. Until the last of them has settled, or its bound has passed, nothing is written or
//! granted under the new generation: the old one's writes may go to what is another object by now.

use std::sync::{Arc, PoisonError};

use tokio::sync::Notify;

use super::flight::Flying;
use crate::{
    clock::Clock,
    failpoints::{self, Fault},
    fence::{BootMs, Ttl},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

/// One version of a route.
#[derive(Debug, Default)]
pub struct Generation {
    active: AtomicUsize,
    unknown_until: AtomicU64,
    retired: AtomicBool,
    /// Wakes the writes of this generation when it is retired.
    change: Notify,
}

impl Generation {
    /// A generation of an earlier run, whose writes may land until then.
    #[must_use]
    pub fn gone(unknown_until: BootMs) -> Arc<Self> {
        Arc::new(Self {
            unknown_until: AtomicU64::new(unknown_until.0),
            retired: AtomicBool::new(true),
            ..Self::default()
        })
    }

    /// Counts a write in. `bound`: how long it may still land once its connection is closed.
    #[must_use]
    pub fn enter(self: &Arc<Self>, clock: &Clock, bound: Ttl) -> RouteGuard {
        if !failpoints::on(Fault::NoBarrier) {
            self.active.fetch_add(1, Ordering::SeqCst);
        }
        RouteGuard { generation: Arc::clone(self), clock: clock.clone(), bound }
    }

    /// Retires it, since a newer one has taken its place: nothing more is sent under it.
    fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.change.notify_waiters();
    }

    /// Whether none of its writes can still land.
    #[must_use]
    pub fn is_over(&self, now: BootMs) -> bool {
        failpoints::on(Fault::ReloadNoWait) || (!self.is_active() && self.unknown_until() <= now)
    }

    /// Whether it is retired, and none of its writes can still land. Once true, this stays true.
    #[must_use]
    pub fn is_spent(&self, now: BootMs) -> bool {
        self.retired.load(Ordering::SeqCst) && self.is_over(now)
    }

    fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst) > 0
    }

    fn unknown_until(&self) -> BootMs {
        BootMs(self.unknown_until.load(Ordering::SeqCst))
    }
}

/// A write's place in a generation, until this is dropped.
#[derive(Debug)]
pub struct RouteGuard {
    generation: Arc<Generation>,
    clock: Clock,
    bound: Ttl,
}

impl RouteGuard {
    /// Whether a newer generation has taken over. What was not sent before is not sent.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.generation.retired.load(Ordering::SeqCst) && !failpoints::on(Fault::ReloadNoWait)
    }

    /// Returns when a newer generation has taken over.
    pub async fn retired(&self) {
        let change = self.generation.change.notified();
        if !self.is_retired() {
            change.await;
        }
    }

    /// How long a write may still land once its connection is closed.
    #[must_use]
    pub fn bound(&self) -> Ttl {
        self.bound
    }

    /// Notes that the write's outcome is unknown: it may land for as long as its bound says, from now on.
    pub(super) fn lose(&self) {
        let until = self.clock.now().boot.after(self.bound);
        self.generation.unknown_until.fetch_max(until.0, Ordering::SeqCst);
    }
}

impl Drop for RouteGuard {
    fn drop(&mut self) {
        if !failpoints::on(Fault::NoBarrier) {
            self.generation.active.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// All generations that writes use, and older ones whose writes may still land.
#[derive(Default)]
pub struct Generations {
    known: Mutex<Known>,
    has_retired: AtomicBool,
}

#[derive(Default)]
struct Known {
    current: Vec<Arc<Generation>>,
    /// Each with the number of its retirement.
    retired: Vec<(u32, Arc<Generation>)>,
    /// The last such number.
    last: u32,
}

impl Generations {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes these the generations that writes use from here on.
    pub fn adopt(&self, current: Vec<Arc<Generation>>) {
        self.known().current = current;
    }

    /// Retires these: nothing is granted while their writes may land, and what was not sent under them is not sent.
    pub fn retire(&self, generations: impl Iterator<Item = Arc<Generation>>) {
        let mut known = self.known();
        for generation in generations {
            generation.retire();
            known.last += 1;
            let number = known.last;
            known.retired.push((number, generation));
        }
        self.has_retired.store(!known.retired.is_empty(), Ordering::SeqCst);
    }

    /// The last retirement's number, up to which an operator may forgive.
    pub(super) fn last(&self) -> u32 {
        self.known().last
    }

    /// Adds the writes of retired generations to what is on its way of an object. `forgiven`: up to which retirement an
    /// operator has said not to wait.
    pub(super) fn add(&self, mut flying: Flying, forgiven: u32, now: BootMs) -> Flying {
        if !self.has_retired.load(Ordering::SeqCst) {
            return flying;
        }
        let mut known = self.known();
        known.retired.retain(|(_, generation)| !generation.is_over(now));
        self.has_retired.store(!known.retired.is_empty(), Ordering::SeqCst);
        for (number, generation) in &known.retired {
            if *number > forgiven {
                flying.retiring |= generation.is_active();
                flying.unknown_until = flying.unknown_until.max(Some(generation.unknown_until()));
            } else {
                let until = if generation.is_active() { BootMs(u64::MAX) } else { generation.unknown_until() };
                flying.forgiven_until = flying.forgiven_until.max(Some(until));
            }
        }
        flying.in_flight |= flying.retiring;
        flying
    }

    /// Whether nothing can still land, also of current generations.
    pub(super) fn are_over(&self, now: BootMs) -> bool {
        let known = self.known();
        let retired = known.retired.iter().map(|(_, generation)| generation);
        known.current.iter().chain(retired).all(|generation| generation.is_over(now))
    }

    /// Whether no write is counted in any generation.
    pub(super) fn are_idle(&self) -> bool {
        let known = self.known();
        let retired = known.retired.iter().map(|(_, generation)| generation);
        !known.current.iter().chain(retired).any(|generation| generation.is_active())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::{Now, WallMs};

    fn clock(boot: u64) -> Clock {
        Clock::driven(Now { wall: WallMs(1_800_000_000_000), boot: BootMs(boot) }).0
    }

    #[test]
    fn a_generation_is_over_when_its_last_write_is_and_can_no_longer_land() {
        let generation = Arc::new(Generation::default());
        assert!(generation.is_over(BootMs(0)));
        let (one, two) = (generation.enter(&clock(0), Ttl(50)), generation.enter(&clock(0), Ttl(50)));
        generation.retire();
        assert!(one.is_retired() && !generation.is_over(BootMs(0)));
        one.lose();
        drop((one, two));
        assert!(!generation.is_over(BootMs(49)) && generation.is_over(BootMs(50)));
    }

    #[test]
    fn what_goes_by_a_retired_one_is_waited_for_unless_it_is_forgiven() {
        let (generations, old, new) = (Generations::default(), Arc::default(), Arc::default());
        generations.adopt(vec![Arc::clone(&old)]);
        let write = old.enter(&clock(0), Ttl(50));
        let flying = |forgiven, now| generations.add(Flying::default(), forgiven, BootMs(now));
        assert!(flying(0, 0).is_drained(BootMs(0)) && !generations.are_over(BootMs(0)) && !generations.are_idle());
        generations.retire(std::iter::once(Arc::clone(&old)));
        generations.adopt(vec![new]);
        assert!(!flying(0, 0).is_drained(BootMs(0)));
        let forgiven = flying(generations.last(), 0);
        assert!(forgiven.is_drained(BootMs(0)) && forgiven.is_tainted(BootMs(0)));
        write.lose();
        drop(write);
        assert!(generations.are_idle() && !generations.are_over(BootMs(49)));
        assert!(!flying(0, 49).is_drained(BootMs(49)) && flying(1, 49).is_tainted(BootMs(49)));
        assert!(flying(0, 50).is_drained(BootMs(50)) && generations.are_over(BootMs(50)));
    }
}
