//! What an agent counts. It has a registry apart from a gate's.

use super::registry::{Counter, Counters, Gauges, Registry};
use crate::fence::Code;

/// Counters that alerts read are at zero from the start: a counter that begins at 1 has not risen.
const REFUSALS: [Code; 2] = [Code::NotLeader, Code::GateUnreachable];
const LOSSES: [&str; 7] =
    ["DEADLINE", "DELETED", "LEASE_EXPIRED", "LEASE_FENCED", "LEASE_NOT_FOUND", "TAKEN", "WRITE_STALE_FENCE"];

/// The metrics of one agent.
pub struct AgentMetrics {
    registry: Registry,
    writes: Counter,
    reads: Counter,
    refusals: Counters,
    losses: Counters,
    objects: Gauges,
}

/// How many objects are in use, by the agent's standing with each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standings {
    pub leading: usize,
    pub waiting: usize,
    /// Who leads cannot be learned now.
    pub cut: usize,
    /// The gate refuses the lease, and a new call will hardly change that.
    pub refused: usize,
}

impl Default for AgentMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl AgentMetrics {
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new(&[]);
        let forwarded = registry.counters(
            "fencegate_agent_forwarded_total",
            &["kind"],
            "Requests that were sent to the gate: writes with a token, and reads.",
        );
        let refusals = registry.counters(
            "fencegate_agent_refusals_total",
            &["code"],
            "Requests that the agent itself has refused, by code.",
        );
        let losses =
            registry.counters("fencegate_agent_losses_total", &["reason"], "Leases that were lost, by reason.");
        for code in REFUSALS {
            refusals.with(&[code.as_str()]).increment(0);
        }
        for reason in LOSSES {
            losses.with(&[reason]).increment(0);
        }
        let objects = registry.gauges(
            "fencegate_agent_objects",
            &["standing"],
            "Objects of this agent by its standing: it leads; it waits for the leader's lease to end; it cannot learn who leads (cut); it may not take part (refused).",
        );
        Self {
            writes: forwarded.with(&["write"]),
            reads: forwarded.with(&["read"]),
            refusals,
            losses,
            objects,
            registry,
        }
    }

    pub fn forwarded(&self, is_write: bool) {
        if is_write { &self.writes } else { &self.reads }.increment(1);
    }

    pub fn refused(&self, code: Code) {
        self.refusals.with(&[code.as_str()]).increment(1);
    }

    pub fn lost(&self, reason: &str) {
        self.losses.with(&[reason]).increment(1);
    }

    /// All metrics, in Prometheus' text format.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a count of objects")]
    pub fn render(&self, &Standings { leading, waiting, cut, refused }: &Standings) -> String {
        for (standing, count) in [("leading", leading), ("waiting", waiting), ("cut", cut), ("refused", refused)] {
            self.objects.with(&[standing]).set(count as f64);
        }
        self.registry.render()
    }
}
