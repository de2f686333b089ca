//! Every metric, by name, with its help text and buckets. Handles are made once and held.
//!
//! Labels are of bounded number: codes, kinds, reasons. Never an object id, a holder or a token.

mod plane;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

pub use plane::{Active, OperationMetrics, PlaneMetrics, RouteMetrics, Standing, Tally, add};

use crate::{
    fence::{
        Code,
        step::{Kind, LeaseRefusal},
    },
    table::ledger::{Granted, Refused},
};

const SECONDS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
const COUNTS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

const METADATA: Metadata<'static> = Metadata::new("fencegate", Level::INFO, None);

/// The registry of one gate. Nothing global: several gates in one process do not mix.
pub struct Metrics {
    handle: PrometheusHandle,
    pub ledger: LedgerMetrics,
    pub table: TableMetrics,
    pub api: ApiMetrics,
    pub plane: PlaneMetrics,
    maker: Maker,
}

struct Maker(PrometheusRecorder);

impl Maker {
    fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
        Key::from_parts(name, labels.iter().map(|&(key, value)| Label::new(key, value.to_owned())).collect::<Vec<_>>())
    }

    fn counter(&self, name: &'static str, labels: &[(&'static str, &str)], help: &'static str) -> Counter {
        self.0.describe_counter(KeyName::from_const_str(name), Some(Unit::Count), help.into());
        self.0.register_counter(&Self::key(name, labels), &METADATA)
    }

    fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)], help: &'static str) -> Gauge {
        self.0.describe_gauge(KeyName::from_const_str(name), None, help.into());
        self.0.register_gauge(&Self::key(name, labels), &METADATA)
    }

    fn histogram(&self, name: &'static str, help: &'static str) -> Histogram {
        self.histogram_with(name, &[], help)
    }

    fn histogram_with(&self, name: &'static str, labels: &[(&'static str, &str)], help: &'static str) -> Histogram {
        self.0.describe_histogram(KeyName::from_const_str(name), None, help.into());
        self.0.register_histogram(&Self::key(name, labels), &METADATA)
    }
}

impl Metrics {
    /// A registry with every metric at zero.
    ///
    /// # Panics
    /// Never: the bucket lists are not empty.
    #[must_use]
    pub fn new() -> Self {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_changes".to_owned()), &COUNTS))
            .expect("buckets are given");
        let maker = Maker(builder.build_recorder());
        maker
            .gauge(
                "fencegate_build_info",
                &[("version", env!("CARGO_PKG_VERSION"))],
                "Always 1; the version is a label.",
            )
            .set(1.0);
        Self {
            ledger: LedgerMetrics::new(&maker),
            table: TableMetrics::new(&maker),
            api: ApiMetrics::new(&maker),
            plane: PlaneMetrics::new(&maker),
            handle: maker.0.handle(),
            maker,
        }
    }

    /// A route's metrics. Asked for again, they are the same ones.
    #[must_use]
    pub fn route(&self, name: &str) -> RouteMetrics {
        RouteMetrics::new(&self.maker, name)
    }

    /// Takes up what histograms have gathered since the last time; without it they grow.
    pub fn keep_up(&self) {
        self.handle.run_upkeep();
    }

    /// The text that Prometheus scrapes.
    #[must_use]
    pub fn render(&self) -> String {
        self.keep_up();
        self.handle.render()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// What the ledger counts.
#[derive(Clone)]
pub struct LedgerMetrics {
    commit_seconds: Histogram,
    round_changes: Histogram,
    leases_live: Gauge,
    waiters: Gauge,
    draining: Gauge,
    drain_seconds: Histogram,
    records_in_memory: Gauge,
    latched: Gauge,
    clock_step: Gauge,
    clock_steps: Counter,
    events: [Counter; 5],
    renewal_rejected: [Counter; 7],
}

/// Why renewals are refused: the label of `lease_renewal_rejected_total`.
const REJECTIONS: [&str; 7] =
    ["not_found", "not_holder", "token_mismatch", "fenced", "expired", "unavailable", "other"];

impl LedgerMetrics {
    fn new(maker: &Maker) -> Self {
        let kind = |kind: Kind| {
            let help = "Lease changes, by what happened.";
            maker.counter("fencegate_lease_events_total", &[("event", kind.as_str())], help)
        };
        let help = "Renewals that were refused: the holder has lost its lease or never had it.";
        Self {
            commit_seconds: maker.histogram("fencegate_ledger_commit_seconds", "One synced write of the fence table."),
            round_changes: maker.histogram("fencegate_ledger_round_changes", "Lease changes made durable by one sync."),
            leases_live: maker.gauge("fencegate_leases_live", &[], "Leases that are held."),
            waiters: maker.gauge("fencegate_lease_waiters", &[], "Acquires that wait for their turn."),
            draining: maker.gauge(
                "fencegate_advances_draining",
                &[],
                "Leases that are changing hands and wait for older writes to settle.",
            ),
            drain_seconds: maker.histogram(
                "fencegate_drain_seconds",
                "How long a change of hands waited for older writes, where it had to.",
            ),
            records_in_memory: maker.gauge("fencegate_table_records_in_memory", &[], "Objects in use, kept in memory."),
            latched: maker.gauge(
                "fencegate_table_latched",
                &[],
                "1 once a write or sync failed: no lease changes and no writes until a restart.",
            ),
            clock_step: maker.gauge(
                "fencegate_clock_step_seconds",
                &[],
                "How far the wall clock was set since the start, all steps added up.",
            ),
            clock_steps: maker.counter(
                "fencegate_clock_steps_total",
                &[],
                "How often the wall clock was set since the start.",
            ),
            events: [Kind::Granted, Kind::Renewed, Kind::Released, Kind::Fenced, Kind::Expired].map(kind),
            renewal_rejected: REJECTIONS
                .map(|reason| maker.counter("lease_renewal_rejected_total", &[("reason", reason)], help)),
        }
    }

    pub fn committed(&self, seconds: f64, changes: usize) {
        self.commit_seconds.record(seconds);
        if changes > 0 {
            #[allow(clippy::cast_precision_loss, reason = "a round is small")]
            self.round_changes.record(changes as f64);
        }
    }

    pub fn announced(&self, kind: Kind) {
        let place = match kind {
            Kind::Granted => 0,
            Kind::Renewed => 1,
            Kind::Released => 2,
            Kind::Fenced => 3,
            Kind::Expired => 4,
        };
        self.events[place].increment(1);
    }

    pub fn renewed(&self, outcome: &Result<Granted, Refused>) {
        let reason = match outcome {
            Ok(_) => return,
            Err(Refused::NotFound) => 0,
            Err(Refused::Lease { why, .. }) => match why {
                LeaseRefusal::NotHolder => 1,
                LeaseRefusal::TokenMismatch => 2,
                LeaseRefusal::Fenced { .. } => 3,
                LeaseRefusal::Expired { .. } => 4,
                LeaseRefusal::Held { .. } | LeaseRefusal::SeqExhausted | LeaseRefusal::ClockUntrusted => 6,
            },
            Err(Refused::Unavailable | Refused::Unsure) => 5,
            Err(Refused::RequestIdUsed | Refused::Overloaded | Refused::Stopping | Refused::Draining { .. }) => 6,
        };
        self.renewal_rejected[reason].increment(1);
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    pub fn gauges(&self, live: usize, waiters: usize, draining: usize) {
        self.leases_live.set(live as f64);
        self.waiters.set(waiters as f64);
        self.draining.set(draining as f64);
    }

    #[allow(clippy::cast_precision_loss, reason = "a measurement")]
    pub fn drained(&self, waited_ms: u64) {
        self.drain_seconds.record(waited_ms as f64 / 1_000.0);
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    pub fn in_memory(&self, records: usize) {
        self.records_in_memory.set(records as f64);
    }

    pub fn latched(&self) {
        self.latched.set(1.0);
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    pub fn clock_stepped(&self, ms: i64) {
        self.clock_step.increment(ms as f64 / 1_000.0);
        self.clock_steps.increment(1);
    }
}

/// What is known of the table since the start.
pub struct TableMetrics {
    incarnation: Gauge,
    unclean_start: Gauge,
    behind_mark: Gauge,
}

impl TableMetrics {
    fn new(maker: &Maker) -> Self {
        Self {
            incarnation: maker.gauge("fencegate_table_incarnation", &[], "How often the table had to start over because part of its past was lost, or it was restored."),
            unclean_start: maker.gauge("fencegate_table_unclean_start", &[], "1 if the run before this one did not end in good order."),
            behind_mark: maker.gauge("fencegate_clock_behind_mark", &[], "1 if the wall clock was behind the table's own mark at the start: every older lease counts as expired."),
        }
    }

    pub fn begun(&self, incarnation: u32, was_clean: bool, behind_mark: bool) {
        self.incarnation.set(f64::from(incarnation));
        self.unclean_start.set(f64::from(u8::from(!was_clean)));
        self.behind_mark.set(f64::from(u8::from(behind_mark)));
    }
}

/// What the lease api counts.
pub struct ApiMetrics {
    refusals: [Counter; Code::ALL.len()],
    watchers: Gauge,
}

impl ApiMetrics {
    fn new(maker: &Maker) -> Self {
        let help = "Calls of the lease api that were refused, by code.";
        Self {
            refusals: Code::ALL
                .map(|code| maker.counter("fencegate_api_refusals_total", &[("code", code.as_str())], help)),
            watchers: maker.gauge("fencegate_watchers", &[], "Open streams of lease events."),
        }
    }

    pub fn refused(&self, code: Code) {
        if let Some(place) = Code::ALL.iter().position(|&each| each == code) {
            self.refusals[place].increment(1);
        }
    }

    pub fn watcher(&self, change: f64) {
        self.watchers.increment(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_rendered_with_help_and_buckets() {
        let metrics = Metrics::new();
        metrics.ledger.committed(0.002, 3);
        metrics.ledger.renewed(&Err(Refused::NotFound));
        metrics.ledger.clock_stepped(-1_500);
        metrics.api.refused(Code::LeaseHeld);
        let text = metrics.render();
        for line in [
            "# TYPE fencegate_ledger_commit_seconds histogram",
            "fencegate_ledger_commit_seconds_bucket{le=\"0.0025\"} 1",
            "fencegate_ledger_round_changes_bucket{le=\"4\"} 1",
            "lease_renewal_rejected_total{reason=\"not_found\"} 1",
            "lease_renewal_rejected_total{reason=\"fenced\"} 0",
            "fencegate_clock_step_seconds -1.5",
            "fencegate_api_refusals_total{code=\"LEASE_HELD\"} 1",
            "# HELP fencegate_table_latched ",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
