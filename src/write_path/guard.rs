//! A write that the data plane has admitted: its life, its permits and its idempotency key, in one guard.

use std::{rc::Rc, sync::Arc};

use super::keyed::ReservedKey;
use crate::{
    barrier::{
        in_flight::{Barrier, InFlight},
        stripes::Stripes,
    },
    fence::Now,
    gate::Gate,
};

/// A worker's handle on a value that all workers share. Cloning it changes no counter of other workers.
#[allow(clippy::redundant_allocation, reason = "the outer count is one worker's own")]
pub type Own<T> = Rc<Arc<T>>;

/// An admitted write.
pub type WriteGuard = InFlight<Own<Gate>, Box<ReservedKey>>;

impl Barrier for Own<Gate> {
    fn stripes(&self) -> &Stripes {
        &self.records.stripes
    }

    fn now(&self) -> Now {
        Gate::now(self)
    }

    fn is_latched(&self) -> bool {
        self.records.latched().is_some()
    }

    fn lose_track(&self) {
        self.records.lose_track();
    }
}
