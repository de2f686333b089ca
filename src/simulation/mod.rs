//! The gate, its store, several writers and an adversary, simulated: by seed, in one thread, without a
//! clock of its own.
//!
//! The product's own ledger, stripes, judge and table run here, one step at a time; which step comes next
//! is drawn. Between any two anything else may happen: a pause, a crash that loses what was not synced,
//! a slow, lost or early answer, a step of the wall clock. The adversary takes leases and must never see
//! an older write land; it knows nothing of the gate's rules. The same seed plays the same way each time.
//!
//! - `world`: who there is, and whose turn it is. `rng`: chance, by seed.
//! - `client`: writers and the adversary. `write`: a write on its way through the gate.
//! - `led`: Kubernetes Leases in their place, an API server and the gate's reads of it.
//! - `store`: the store and the network. `disk`: the table, and what happens while it syncs.
//! - `gate`: rounds of the ledger, crashes, stops and starts. `crowd`: what pushes records out of memory.
//! - `oracle`: what was told and what has landed; the promises. `counts`: what was seen.
//!
//! Only in builds with feature `failpoints`, where `fencegate simulate` runs it, and in unit tests.

mod client;
mod counts;
mod crowd;
mod disk;
mod gate;
mod led;
mod oracle;
mod rng;
mod store;
mod world;
mod write;

pub use counts::Counts;

use crate::metrics::Metrics;

/// How one seed went.
pub struct Played {
    pub counts: Counts,
    pub log: Vec<String>,
    /// The promise that was not kept.
    pub violation: Option<&'static str>,
}

/// Plays seeds.
pub struct Player {
    promise: Option<String>,
    is_led: bool,
    metrics: Metrics,
}

impl Player {
    /// `promise`: the only one to look at, by its name. `is_led`: Kubernetes Leases say who may write.
    #[must_use]
    pub fn new(promise: Option<String>, is_led: bool) -> Self {
        Self { promise, is_led, metrics: Metrics::new() }
    }

    /// Plays one seed.
    #[must_use]
    pub fn play(&self, seed: u64) -> Played {
        let world = gate::Simulation::new(seed, self.promise.as_deref(), self.is_led, &self.metrics.ledger).play();
        Played { counts: world.counts, violation: world.violation.map(|violation| violation.name), log: world.log }
    }
}
