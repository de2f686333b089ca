//! Versions of a route: a reload that changes one starts a new generation of it. Writes of the older one
//! are counted here, in every mode; until the last of them has settled, or its bound has passed, nothing
//! is written or granted under the new one: what the old one wrote to may be another object's by now.

use std::sync::Arc;

use tokio::sync::Notify;

use super::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::{
    failpoints::{self, Fault},
    fence::BootMs,
};

/// One version of a route.
#[derive(Debug, Default)]
pub struct Generation {
    active: AtomicUsize,
    unknown_until: AtomicU64,
    retired: AtomicBool,
    /// Tells those that go by it.
    change: Notify,
}

impl Generation {
    /// One of an earlier run: what went by it may land until then.
    #[must_use]
    pub fn gone(unknown_until: BootMs) -> Arc<Self> {
        Arc::new(Self { unknown_until: AtomicU64::new(unknown_until.0), ..Self::default() })
    }

    /// A write goes by it.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> Entered {
        if !failpoints::on(Fault::NoBarrier) {
            self.active.fetch_add(1, Ordering::SeqCst);
        }
        Entered(Arc::clone(self))
    }

    /// A newer one has taken its place: nothing more is sent by it.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.change.notify_waiters();
    }

    /// Whether nothing of it can land any more.
    #[must_use]
    pub fn is_over(&self, now: BootMs) -> bool {
        failpoints::on(Fault::ReloadNoWait) || (!self.is_active() && self.unknown_until() <= now)
    }

    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst) > 0
    }

    pub(super) fn unknown_until(&self) -> BootMs {
        BootMs(self.unknown_until.load(Ordering::SeqCst))
    }
}

/// A write that goes by a generation, until it is dropped.
#[derive(Debug)]
pub struct Entered(Arc<Generation>);

impl Entered {
    /// Whether a newer generation has taken over: what has not been sent by then is not.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.0.retired.load(Ordering::SeqCst) && !failpoints::on(Fault::ReloadNoWait)
    }

    /// Waits until that is so.
    pub async fn retired(&self) {
        let told = self.0.change.notified();
        if !self.is_retired() {
            told.await;
        }
    }

    /// It may still land until then.
    pub fn lose(&self, until: BootMs) {
        self.0.unknown_until.fetch_max(until.0, Ordering::SeqCst);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !failpoints::on(Fault::NoBarrier) {
            self.0.active.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_over_when_its_last_write_is_and_can_no_longer_land() {
        let generation = Arc::new(Generation::default());
        assert!(generation.is_over(BootMs(0)));
        let (one, two) = (generation.enter(), generation.enter());
        generation.retire();
        assert!(one.is_retired() && !generation.is_over(BootMs(0)));
        one.lose(BootMs(50));
        drop((one, two));
        assert!(!generation.is_over(BootMs(49)) && generation.is_over(BootMs(50)));
    }
}
