//! What is counted of the Kubernetes API server that says who was elected.

use super::registry::{Counters, Gauges, Registry};

/// Reads of Leases, and the watches of their namespaces.
#[derive(Clone)]
pub struct KubernetesMetrics {
    watching: Gauges,
    reads: Counters,
}

impl KubernetesMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            watching: registry.gauges(
                "fencegate_kubernetes_watch_up",
                &["lease_namespace"],
                "1 while the watch of a namespace's Leases is served.",
            ),
            reads: registry.counters(
                "fencegate_kubernetes_reads_total",
                &["result"],
                "Reads of one Lease, by what came of them: held (it is there), gone, away (no answer).",
            ),
        }
    }

    /// Whether the watch of a namespace is served.
    pub fn watching(&self, namespace: &str, is_up: bool) {
        self.watching.with_label_values(&[namespace]).set(f64::from(u8::from(is_up)));
    }

    /// A namespace is not looked at any more.
    pub fn forget(&self, namespace: &str) {
        // Where it was never looked at, there is nothing to forget.
        let _ = self.watching.remove_label_values(&[namespace]);
    }

    /// A Lease was read.
    pub fn read(&self, result: &str) {
        self.reads.with_label_values(&[result]).inc();
    }
}
