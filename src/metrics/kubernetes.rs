//! Metrics of the Kubernetes API server that says who was elected.

use super::registry::{Counters, PassingGauges, Registry};

/// Reads of Leases, and the watches of their namespaces.
#[derive(Clone)]
pub struct KubernetesMetrics {
    watching: PassingGauges,
    reads: Counters,
}

impl KubernetesMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            watching: registry.passing_gauges(
                "fencegate_kubernetes_watch_up",
                &["lease_namespace"],
                "1 while the watch of a namespace's Leases is served.",
            ),
            reads: registry.counters(
                "fencegate_kubernetes_reads_total",
                &["result"],
                "Reads of one Lease, by result: held (it exists), gone, away (no answer).",
            ),
        }
    }

    /// Shows whether the watch of a namespace is served.
    pub fn watching(&self, namespace: &str, is_up: bool) {
        self.watching.set(&[namespace], f64::from(u8::from(is_up)));
    }

    /// Removes a namespace that is no longer watched.
    pub fn forget(&self, namespace: &str) {
        self.watching.remove(&[namespace]);
    }

    /// Counts a read of a Lease.
    pub fn read(&self, result: &str) {
        self.reads.with(&[result]).increment(1);
    }
}
