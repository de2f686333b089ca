//! Shows whether the ledger goes on. A disk that hangs holds the ledger in the middle of a round. Calls must not
//! wait for that without a bound, and an operator must see it.

use std::time::Duration;

use crate::{
    clock::Stopwatch,
    sync::atomic::{AtomicU64, Ordering},
};

/// Since when the ledger has been working on its round.
#[derive(Debug, Default)]
pub struct Pulse {
    /// On the machine's boot clock, in milliseconds, and at least 1; 0: the ledger has no round.
    since: AtomicU64,
}

/// How long a call waits for a table that hangs, unless a setting says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(5);

impl Pulse {
    /// A round begins.
    pub(super) fn begins(&self) {
        self.since.store(machine_ms().max(1), Ordering::Relaxed);
    }

    /// A round has ended.
    pub(super) fn rests(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// For how long the ledger has been working on its round.
    #[must_use]
    pub fn age(&self) -> Duration {
        match self.since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis(machine_ms().saturating_sub(since)),
        }
    }
}

/// Not the clock that leases use, which a test may hold: a disk hangs in the machine's own time.
fn machine_ms() -> u64 {
    Stopwatch::start().begun().0
}
