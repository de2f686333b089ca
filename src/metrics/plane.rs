//! What the data plane counts, all workers together. What every write counts, a worker counts on its own first: see
//! [`super::tally`].

use std::sync::OnceLock;

use super::{
    LONG_SECONDS, SECONDS,
    registry::{Counter, Counters, Gauge, Gauges, Histogram, Histograms, Measure, PassingGauges, Registry},
    tally::{RouteTally, Tally},
};
use crate::fence::Code;

pub(super) const STORE_SECONDS: Measure = Measure {
    name: "fencegate_store_response_seconds",
    buckets: &LONG_SECONDS,
    help: "Time from the sending of a request (of a long write: of its last byte) to the head of the store's answer.",
};
pub(super) const VALIDATION_SECONDS: Measure = Measure {
    name: "fencing_validation_duration_seconds",
    buckets: &SECONDS,
    help: "Time taken to judge a write's fence token.",
};

/// A write that waits for its twin.
pub struct TwinWaiter(Gauge);

impl Drop for TwinWaiter {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// The result of a write with an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedResult {
    /// Its key was new.
    Fresh,
    /// The write got the answer that was kept.
    Replayed,
    /// The write got the answer of its twin, which was on its way.
    Shared,
    Mismatch,
    InProgress,
    Unknown,
    OtherLease,
    Dropped,
}

impl KeyedResult {
    /// All results, in the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Fresh,
        Self::Replayed,
        Self::Shared,
        Self::Mismatch,
        Self::InProgress,
        Self::Unknown,
        Self::OtherLease,
        Self::Dropped,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Replayed => "replayed",
            Self::Shared => "shared",
            Self::Mismatch => "mismatch",
            Self::InProgress => "in_progress",
            Self::Unknown => "unknown",
            Self::OtherLease => "other_lease",
            Self::Dropped => "dropped",
        }
    }
}

/// What all routes count together.
pub struct PlaneMetrics {
    keyed: [Counter; KeyedResult::ALL.len()],
    keyed_waiting: Gauge,
    refusals: [Counter; Code::ALL.len()],
    unknown: Counter,
    loads: Counter,
    pub(super) store_seconds: [Histogram; 2],
    pub(super) accepted: Counter,
    crowded_out: [Counter; 2],
    pub(super) connections: Gauge,
    pub(super) bytes: [Counter; 2],
    pub(super) store_connections: [Gauge; 2],
    pub(super) store_queue: Gauge,
    held_bytes: Gauge,
    reloads: [Counter; 2],
    reload_failed: Gauge,
    certificate_not_after: PassingGauges,
    /// Reads the end of the certificate of the gate's port.
    certificate: OnceLock<Box<dyn Fn() -> Option<i64> + Send + Sync>>,
}

impl PlaneMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let refusals =
            registry.counters("fencegate_refusals_total", &["code"], "Requests that the gate refused, by code.");
        let store_seconds = registry.histograms(&STORE_SECONDS, &["kind"]);
        let bytes = registry.counters(
            "fencegate_bytes_total",
            &["direction"],
            "Bytes on clients' connections, as they went over the wire.",
        );
        let store_connections = registry.gauges("fencegate_store_connections", &["state"], "Connections to the store.");
        let crowded_out = registry.counters(
            "fencegate_connections_crowded_out_total",
            &["reason"],
            "Clients' connections that were closed to make room for others, idle ones first; or because their peer had used its share.",
        );
        let reloads = registry.counters("fencegate_reloads_total", &["result"], "SIGHUPs, by result.");
        let keyed = registry.counters(
            "fencegate_idempotency_keys_total",
            &["result"],
            "Writes with an Idempotency-Key, by result.",
        );
        Self {
            keyed_waiting: registry.gauge(
                "fencegate_idempotency_waiting",
                "Writes that wait for the answer of one with the same Idempotency-Key.",
            ),
            keyed: KeyedResult::ALL.map(|result| keyed.with(&[result.name()])),
            refusals: Code::ALL.map(|code| refusals.with(&[code.as_str()])),
            unknown: registry
                .counter("fencegate_unknown_outcomes_total", "Writes that were sent and whose outcome is unknown."),
            loads: registry.counter(
                "fencegate_table_loads_total",
                "Writes to objects that were not in memory, so that the table was read.",
            ),
            store_seconds: ["read", "write"].map(|kind| store_seconds.with(&[kind])),
            accepted: registry.counter("fencegate_connections_total", "Connections that clients have made."),
            crowded_out: ["idle", "peer"].map(|reason| crowded_out.with(&[reason])),
            connections: registry.gauge("fencegate_connections", "Connections that clients have open."),
            bytes: ["received", "sent"].map(|direction| bytes.with(&[direction])),
            store_connections: ["idle", "busy"].map(|state| store_connections.with(&[state])),
            store_queue: registry.gauge("fencegate_store_queue", "Requests that wait for a connection to the store."),
            held_bytes: registry.gauge("fencegate_held_bytes", "Memory for bodies that are being collected."),
            reloads: ["applied", "refused"].map(|result| reloads.with(&[result])),
            reload_failed: registry.gauge(
                "fencegate_reload_failed",
                "1 if the last reload found a fault: the gate uses its older settings.",
            ),
            certificate_not_after: registry.passing_gauges(
                "fencegate_tls_certificate_not_after_seconds",
                &[],
                "When the certificate of the gate's port expires, as Unix time. Absent without TLS.",
            ),
            certificate: OnceLock::new(),
        }
    }

    /// New counts for one worker.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally::new(self)
    }

    pub fn refused(&self, code: Code) {
        if let Some(place) = Code::ALL.iter().position(|&each| each == code) {
            self.refusals[place].increment(1);
        }
    }

    pub fn keyed(&self, result: KeyedResult) {
        self.keyed[result as usize].increment(1);
    }

    /// Counts a write that waits for its twin, until the result is dropped.
    #[must_use]
    pub fn waits_for_twin(&self) -> TwinWaiter {
        self.keyed_waiting.increment(1.0);
        TwinWaiter(self.keyed_waiting.clone())
    }

    /// Counts a connection that was closed to make room: it was idle or could be broken off, or its peer had too
    /// many.
    pub fn crowded_out(&self, is_of_peer: bool) {
        self.crowded_out[usize::from(is_of_peer)].increment(1);
    }

    pub fn unknown(&self) {
        self.unknown.increment(1);
    }

    pub fn loaded(&self) {
        self.loads.increment(1);
    }

    pub fn reloaded(&self, applied: bool) {
        self.reloads[usize::from(!applied)].increment(1);
        self.reload_failed.set(f64::from(u8::from(!applied)));
    }

    /// Sets the function that each scrape calls for the end of the certificate of the gate's port, where it has
    /// one.
    pub fn ask_for_certificate(&self, not_after: impl Fn() -> Option<i64> + Send + Sync + 'static) {
        let _ = self.certificate.set(Box::new(not_after));
    }

    /// Reads what is read with each scrape.
    #[allow(clippy::cast_precision_loss, reason = "seconds since 1970")]
    pub(super) fn on_scrape(&self) {
        match self.certificate.get().and_then(|not_after| not_after()) {
            Some(until) => self.certificate_not_after.set(&[], until as f64),
            // The gauge may not exist.
            None => self.certificate_not_after.remove(&[]),
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    pub fn held(&self, bytes: usize) {
        self.held_bytes.set(bytes as f64);
    }
}

/// What routes count, by route. Dashboards know these names.
pub(super) struct RouteFamilies {
    conflicts: Counters,
    validation: Histograms,
    active: Gauges,
    stale: Counters,
}

/// What a route counts, by operation.
pub struct RouteMetrics {
    operations: [OperationMetrics; OPERATIONS.len()],
}

/// What one operation on one route counts.
#[derive(Clone)]
pub(super) struct OperationMetrics {
    pub(super) conflicts: Counter,
    pub(super) validation: Histogram,
    pub(super) active: Gauge,
    pub(super) stale: Counter,
}

/// The operations that have a label; all other methods are one.
pub(super) const OPERATIONS: [&str; 5] = ["put", "post", "patch", "delete", "other"];

impl RouteFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        let labels = ["resource", "operation"];
        Self {
            conflicts: registry.counters(
                "fencing_token_conflicts_total",
                &labels,
                "Writes refused for their fence token.",
            ),
            validation: registry.histograms(&VALIDATION_SECONDS, &labels),
            active: registry.gauges("active_fenced_operations", &labels, "Writes on their way to the store."),
            stale: registry.counters(
                "stale_fencing_token_total",
                &["resource"],
                "Writes refused because their lease has changed hands.",
            ),
        }
    }

    pub(super) fn route(&self, resource: &str) -> RouteMetrics {
        let operations = OPERATIONS.map(|operation| {
            let labels = [resource, operation];
            OperationMetrics {
                conflicts: self.conflicts.with(&labels),
                validation: self.validation.with(&labels),
                active: self.active.with(&labels),
                stale: self.stale.with(&[resource]),
            }
        });
        RouteMetrics { operations }
    }
}

impl RouteMetrics {
    /// New counts for this route and one worker.
    #[must_use]
    pub fn tally(&self) -> RouteTally {
        RouteTally::new(&self.operations)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    };

    use crate::metrics::Metrics;

    #[test]
    fn a_certificates_end_is_shown_while_there_is_one() {
        let metrics = Metrics::new();
        let name = "fencegate_tls_certificate_not_after_seconds";
        assert!(!metrics.render().contains(name));
        let not_after = Arc::new(AtomicI64::new(0));
        let shown = Arc::clone(&not_after);
        metrics.plane.ask_for_certificate(move || Some(shown.load(Ordering::Relaxed)).filter(|until| *until > 0));
        for until in [1_800_000_000, 1_900_000_000] {
            not_after.store(until, Ordering::Relaxed);
            let line = format!("\n{name} {until}\n");
            assert!(metrics.render().contains(&line), "{}", metrics.render());
        }
        not_after.store(0, Ordering::Relaxed);
        assert!(!metrics.render().contains(name));
    }
}
