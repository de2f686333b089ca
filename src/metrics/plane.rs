//! What the data plane counts. A worker counts bytes and connections on its own and adds them up once
//! per tick ([`Tally`]), so that a request costs no shared counter for them.

use std::cell::Cell;

use metrics::{Counter, Gauge, Histogram};

use super::Maker;
use crate::fence::{Code, Refusal};

/// What all routes count together.
pub struct PlaneMetrics {
    refusals: [Counter; Code::ALL.len()],
    unknown: Counter,
    store_seconds: [Histogram; 2],
    accepted: Counter,
    connections: Gauge,
    bytes: [Counter; 2],
    store_connections: [Gauge; 2],
    store_queue: Gauge,
    held_bytes: Gauge,
    reloads: [Counter; 2],
    reload_failed: Gauge,
}

impl PlaneMetrics {
    pub(super) fn new(maker: &Maker) -> Self {
        let refusal = |code: Code| {
            maker.counter(
                "fencegate_refusals_total",
                &[("code", code.as_str())],
                "Requests that the gate refused, by code.",
            )
        };
        Self {
            refusals: Code::ALL.map(refusal),
            unknown: maker.counter(
                "fencegate_unknown_outcomes_total",
                &[],
                "Writes that were sent and of which nobody knows what became.",
            ),
            store_seconds: ["read", "write"].map(|kind| {
                maker.histogram_with(
                    "fencegate_store_response_seconds",
                    &[("kind", kind)],
                    "From the sending of a request (of a long write: from its last byte) to the head of the store's answer.",
                )
            }),
            accepted: maker.counter("fencegate_connections_total", &[], "Connections that clients have made."),
            connections: maker.gauge("fencegate_connections", &[], "Connections that clients have open."),
            bytes: ["received", "sent"].map(|direction| {
                let help = "Bytes on clients' connections, as they went over the wire.";
                maker.counter("fencegate_bytes_total", &[("direction", direction)], help)
            }),
            store_connections: ["idle", "busy"].map(|state| {
                maker.gauge("fencegate_store_connections", &[("state", state)], "Connections to the store.")
            }),
            store_queue: maker.gauge("fencegate_store_queue", &[], "Requests that wait for a connection to the store."),
            held_bytes: maker.gauge("fencegate_held_bytes", &[], "Room taken by bodies that are being collected."),
            reloads: ["applied", "refused"].map(|result| {
                maker.counter("fencegate_reloads_total", &[("result", result)], "SIGHUPs, by what came of them.")
            }),
            reload_failed: maker.gauge(
                "fencegate_reload_failed",
                &[],
                "1 if the last reload found a fault: the gate goes by its older settings.",
            ),
        }
    }

    pub fn refused(&self, code: Code) {
        if let Some(place) = Code::ALL.iter().position(|&each| each == code) {
            self.refusals[place].increment(1);
        }
    }

    pub fn unknown(&self) {
        self.unknown.increment(1);
    }

    /// The store has begun to answer.
    pub fn answered(&self, is_write: bool, seconds: f64) {
        self.store_seconds[usize::from(is_write)].record(seconds);
    }

    pub fn reloaded(&self, applied: bool) {
        self.reloads[usize::from(!applied)].increment(1);
        self.reload_failed.set(f64::from(u8::from(!applied)));
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    pub fn held(&self, bytes: usize) {
        self.held_bytes.set(bytes as f64);
    }
}

/// What one worker has counted since it last added it up.
#[derive(Debug, Default)]
pub struct Tally {
    pub accepted: Cell<u64>,
    pub received: Cell<u64>,
    pub sent: Cell<u64>,
    shown: Cell<Standing>,
}

/// How many of what a worker has at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    pub connections: usize,
    pub store_idle: usize,
    pub store_busy: usize,
    pub store_queue: usize,
}

/// Adds to a worker's count.
pub fn add(count: &Cell<u64>, more: usize) {
    count.set(count.get() + more as u64);
}

impl Tally {
    /// Adds up what was counted, and shows how things stand.
    #[allow(clippy::cast_precision_loss, reason = "gauges")]
    pub fn add_up(&self, metrics: &PlaneMetrics, now: Standing) {
        let before = self.shown.replace(now);
        let change = |gauge: &Gauge, before: usize, now: usize| {
            if before != now {
                gauge.increment(now as f64 - before as f64);
            }
        };
        metrics.accepted.increment(self.accepted.take());
        metrics.bytes[0].increment(self.received.take());
        metrics.bytes[1].increment(self.sent.take());
        change(&metrics.connections, before.connections, now.connections);
        change(&metrics.store_connections[0], before.store_idle, now.store_idle);
        change(&metrics.store_connections[1], before.store_busy, now.store_busy);
        change(&metrics.store_queue, before.store_queue, now.store_queue);
    }
}

/// What a route counts, by operation. The names are those that people's dashboards know.
#[derive(Clone)]
pub struct RouteMetrics {
    operations: [OperationMetrics; OPERATIONS.len()],
}

/// What one operation on one route counts.
#[derive(Clone)]
pub struct OperationMetrics {
    conflicts: Counter,
    validation: Histogram,
    active: Gauge,
    stale: Counter,
}

/// The operations told apart; all other methods are one.
const OPERATIONS: [&str; 5] = ["put", "post", "patch", "delete", "other"];

impl RouteMetrics {
    pub(super) fn new(maker: &Maker, resource: &str) -> Self {
        let stale = maker.counter(
            "stale_fencing_token_total",
            &[("resource", resource)],
            "Writes refused because their lease has changed hands.",
        );
        let operations = OPERATIONS.map(|operation| {
            let labels = [("resource", resource), ("operation", operation)];
            let of_token = "Writes refused for their fence token.";
            let of_judge = "Time taken to judge a write's fence token.";
            let of_active = "Writes on their way to the store.";
            OperationMetrics {
                conflicts: maker.counter("fencing_token_conflicts_total", &labels, of_token),
                validation: maker.histogram_with("fencing_validation_duration_seconds", &labels, of_judge),
                active: maker.gauge("active_fenced_operations", &labels, of_active),
                stale: stale.clone(),
            }
        });
        Self { operations }
    }

    /// The handles for one write.
    #[must_use]
    pub fn operation(&self, method: &http::Method) -> &OperationMetrics {
        let operation = match method.as_str() {
            "PUT" => 0,
            "POST" => 1,
            "PATCH" => 2,
            "DELETE" => 3,
            _ => 4,
        };
        &self.operations[operation]
    }
}

impl OperationMetrics {
    /// A write was judged.
    pub fn judged(&self, seconds: f64, refusal: Option<&Refusal>) {
        self.validation.record(seconds);
        match refusal {
            // Nothing is wrong with the token.
            None | Some(Refusal::Unusable(_) | Refusal::Draining { .. }) => {}
            Some(Refusal::Stale { .. }) => {
                self.stale.increment(1);
                self.conflicts.increment(1);
            }
            Some(
                Refusal::Unfenced
                | Refusal::Malformed(_)
                | Refusal::Mismatch { .. }
                | Refusal::Ahead { .. }
                | Refusal::WrongSecret { .. }
                | Refusal::Ended { .. },
            ) => self.conflicts.increment(1),
        }
    }

    /// A write is on its way until this is dropped.
    #[must_use]
    pub fn active(&self) -> Active {
        self.active.increment(1.0);
        Active(self.active.clone())
    }
}

/// A write on its way.
pub struct Active(Gauge);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
