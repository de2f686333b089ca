//! Every metric, by name, with its help text and buckets. Handles are made once and held.
//!
//! Labels are of bounded number: codes, kinds, reasons. Never an object id, a holder or a token.

mod agent;
mod kubernetes;
mod plane;
mod registry;
mod tally;

pub use agent::{AgentMetrics, Standings};
pub use kubernetes::KubernetesMetrics;
pub use plane::{KeyedResult, PlaneMetrics, RouteMetrics};
pub use tally::{OperationTally, RouteTally, Tally, WorkerGauges, add};

use std::sync::{Arc, OnceLock};

use self::{
    plane::RouteFamilies,
    registry::{Counter, Gauge, Histogram, Measure, Registry},
};
use crate::fence::{Code, Incarnation, authority::MigrationState, step::Kind, time::Frame};

const SECONDS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
/// A store that hangs, and a drain behind it, take more than a minute by the default bounds.
const LONG_SECONDS: [f64; 14] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 45.0, 120.0];
const COUNTS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

const COMMIT_SECONDS: Measure = Measure {
    name: "fencegate_ledger_commit_seconds",
    buckets: &SECONDS,
    help: "One synced write of the fence table.",
};
const ROUND_CHANGES: Measure = Measure {
    name: "fencegate_ledger_round_changes",
    buckets: &COUNTS,
    help: "Lease changes made durable by one sync.",
};
const DRAIN_SECONDS: Measure = Measure {
    name: "fencegate_drain_seconds",
    buckets: &LONG_SECONDS,
    help: "How long handovers that had to wait for older writes have waited.",
};
/// Every histogram of a gate.
static MEASURES: [&Measure; 5] =
    [&COMMIT_SECONDS, &ROUND_CHANGES, &DRAIN_SECONDS, &plane::STORE_SECONDS, &plane::VALIDATION_SECONDS];

/// The metrics of one gate. Nothing global: several gates in one process do not mix.
pub struct Metrics {
    pub ledger: LedgerMetrics,
    pub table: TableMetrics,
    pub api: ApiMetrics,
    pub audit: AuditMetrics,
    pub plane: PlaneMetrics,
    pub kubernetes: KubernetesMetrics,
    routes: RouteFamilies,
    registry: Registry,
}

impl Metrics {
    /// Every metric at zero.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new(&MEASURES);
        let build = registry.gauges("fencegate_build_info", &["version"], "Always 1; the version is a label.");
        build.with(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Self {
            ledger: LedgerMetrics::new(&registry),
            table: TableMetrics::new(&registry),
            api: ApiMetrics::new(&registry),
            audit: AuditMetrics::new(&registry),
            plane: PlaneMetrics::new(&registry),
            kubernetes: KubernetesMetrics::new(&registry),
            routes: RouteFamilies::new(&registry),
            registry,
        }
    }

    /// A route's metrics. Another call with the same name returns the same ones.
    #[must_use]
    pub fn route(&self, name: &str) -> RouteMetrics {
        self.routes.route(name)
    }

    /// Sorts the samples of histograms into their buckets. To be called every few seconds: until then, or until the
    /// next scrape, each sample takes memory.
    pub fn upkeep(&self) {
        self.registry.upkeep();
    }

    /// All metrics, in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.plane.on_scrape();
        self.ledger.on_scrape();
        self.audit.on_scrape();
        self.registry.render()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// For how many seconds the ledger has been working on its round.
type CommitAge = Box<dyn Fn() -> f64 + Send + Sync>;

/// What the ledger counts.
#[derive(Clone)]
pub struct LedgerMetrics {
    commit_seconds: Histogram,
    round_changes: Histogram,
    leases_live: Gauge,
    waiters: Gauge,
    draining: Gauge,
    drain_seconds: Histogram,
    drain_oldest: Gauge,
    commit_oldest: Gauge,
    commit_age: Arc<OnceLock<CommitAge>>,
    records_in_memory: Gauge,
    latched: Gauge,
    clock_step: Gauge,
    clock_steps: Counter,
    events: [Counter; 5],
    renewal_rejected: [Counter; 7],
    certificates: [Counter; 3],
    migrations: [Counter; MigrationState::ALL.len()],
}

/// The result of a certificate: the label of `fencegate_certificates_total`.
#[derive(Clone, Copy, Debug)]
pub enum CertificateResult {
    Applied = 0,
    Superseded = 1,
    Parked = 2,
}

/// Why a renewal is refused: the index in `REJECTIONS`.
#[derive(Clone, Copy, Debug)]
pub enum RenewalRejection {
    NotFound = 0,
    NotHolder = 1,
    TokenMismatch = 2,
    Fenced = 3,
    Expired = 4,
    Unavailable = 5,
    Other = 6,
}

/// Why renewals are refused: the label of `lease_renewal_rejected_total`.
const REJECTIONS: [&str; 7] =
    ["not_found", "not_holder", "token_mismatch", "fenced", "expired", "unavailable", "other"];

impl LedgerMetrics {
    fn new(registry: &Registry) -> Self {
        let events = registry.counters("fencegate_lease_events_total", &["event"], "Lease changes, by what happened.");
        let rejected = registry.counters(
            "lease_renewal_rejected_total",
            &["reason"],
            "Renewals that were refused: the holder has lost its lease or never had it.",
        );
        let certificates = registry.counters(
            "fencegate_certificates_total",
            &["result"],
            "Fence certificates that were taken, by effect. Parked certificates wait for an operator.",
        );
        let migrations = registry.counters(
            "fencegate_migrations_total",
            &["state"],
            "Migrations, by the states that they have reached.",
        );
        Self {
            certificates: ["applied", "superseded", "parked"].map(|result| certificates.with(&[result])),
            migrations: MigrationState::ALL.map(|state| migrations.with(&[state.name()])),
            commit_seconds: registry.histogram(&COMMIT_SECONDS),
            round_changes: registry.histogram(&ROUND_CHANGES),
            leases_live: registry.gauge("fencegate_leases_live", "Leases that are held."),
            waiters: registry.gauge("fencegate_lease_waiters", "Acquires that wait for their turn."),
            draining: registry.gauge(
                "fencegate_advances_draining",
                "Leases that are changing hands and wait for older writes to settle.",
            ),
            drain_seconds: registry.histogram(&DRAIN_SECONDS),
            commit_oldest: registry.gauge(
                "fencegate_ledger_commit_oldest_seconds",
                "How long the present commit of the ledger has taken so far; 0 if there is none. More than a second: the disk stands still.",
            ),
            commit_age: Arc::default(),
            drain_oldest: registry.gauge(
                "fencegate_drain_oldest_seconds",
                "How long the oldest handover has waited for older writes so far; 0 if none waits.",
            ),
            records_in_memory: registry.gauge("fencegate_table_records_in_memory", "Objects in use, kept in memory."),
            latched: registry.gauge(
                "fencegate_table_latched",
                "1 once a write or sync failed: no lease changes and no writes until a restart.",
            ),
            clock_step: registry.gauge(
                "fencegate_clock_step_seconds",
                "How far the wall clock was set since the start, the sum of all steps.",
            ),
            clock_steps: registry
                .counter("fencegate_clock_steps_total", "How often the wall clock was set since the start."),
            events: [Kind::Granted, Kind::Renewed, Kind::Released, Kind::Fenced, Kind::Expired]
                .map(|kind| events.with(&[kind.as_str()])),
            renewal_rejected: REJECTIONS.map(|reason| rejected.with(&[reason])),
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

    pub fn certificate(&self, result: CertificateResult) {
        self.certificates[result as usize].increment(1);
    }

    /// Sets the function that each scrape calls for the seconds that the ledger has been working on its round.
    pub fn ask_for_commit_age(&self, age: impl Fn() -> f64 + Send + Sync + 'static) {
        let _ = self.commit_age.set(Box::new(age));
    }

    /// Reads what is read with each scrape.
    fn on_scrape(&self) {
        self.commit_oldest.set(self.commit_age.get().map_or(0.0, |age| age()));
    }

    /// Counts a migration that has reached a state.
    pub fn migration(&self, state: MigrationState) {
        if let Some(place) = MigrationState::ALL.iter().position(|each| *each == state) {
            self.migrations[place].increment(1);
        }
    }

    /// Counts a refused renewal.
    pub fn renewal_rejected(&self, why: RenewalRejection) {
        self.renewal_rejected[why as usize].increment(1);
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
    pub fn oldest_drain(&self, waits_ms: u64) {
        self.drain_oldest.set(waits_ms as f64 / 1_000.0);
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
    floor: Gauge,
    unclean_start: Gauge,
    behind_mark: Gauge,
    started: Gauge,
}

impl TableMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            incarnation: registry.gauge("fencegate_table_incarnation", "Rises when the table starts over because part of its past was lost, or it was restored."),
            floor: registry.gauge("fencegate_table_floor", "The lease_seq above which this table grants; `table restore --above` asks for it."),
            unclean_start: registry.gauge("fencegate_table_unclean_start", "1 if the run before this one did not end in good order."),
            behind_mark: registry.gauge("fencegate_clock_behind_mark", "1 if the wall clock was behind the table's own mark at the start: every older lease counts as expired."),
            // Dashboards know this name.
            started: registry.gauge("process_start_time_seconds", "When this run began, as Unix time."),
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "milliseconds since 1970, and numbers below 2^53")]
    pub fn begun(&self, incarnation: Incarnation, was_clean: bool, frame: &Frame) {
        self.incarnation.set(f64::from(incarnation.number()));
        self.floor.set(incarnation.floor().get() as f64);
        self.unclean_start.set(f64::from(u8::from(!was_clean)));
        self.behind_mark.set(f64::from(u8::from(frame.behind_mark)));
        self.started.set(frame.start.wall.0 as f64 / 1_000.0);
    }
}

/// What the lease api counts.
pub struct ApiMetrics {
    refusals: [Counter; Code::ALL.len()],
    watchers: Gauge,
}

impl ApiMetrics {
    fn new(registry: &Registry) -> Self {
        let refusals = registry.counters(
            "fencegate_api_refusals_total",
            &["code"],
            "Calls of the lease api that were refused, by code.",
        );
        Self {
            refusals: Code::ALL.map(|code| refusals.with(&[code.as_str()])),
            watchers: registry.gauge("fencegate_watchers", "Open streams of lease events."),
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

/// What the audit log counts.
#[derive(Clone)]
pub struct AuditMetrics {
    lines: Counter,
    lost: Counter,
    up: Gauge,
    is_up: Arc<OnceLock<IsUp>>,
}

/// Whether the audit log can be written.
type IsUp = Box<dyn Fn() -> bool + Send + Sync>;

impl AuditMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            lines: registry.counter("fencegate_audit_lines_total", "Lines that were written to the audit log."),
            lost: registry.counter(
                "fencegate_audit_lost_total",
                "Lines of the audit log that were lost, because it could not be written for too long.",
            ),
            up: registry.gauge(
                "fencegate_audit_up",
                "0 while the audit log cannot be written: operators' calls are refused then. 1 if it can, or is off.",
            ),
            is_up: Arc::default(),
        }
    }

    pub fn written(&self) {
        self.lines.increment(1);
    }

    pub fn lost(&self, lines: u64) {
        self.lost.increment(lines);
    }

    /// Sets the function that each scrape calls for whether the log can be written. Without it, the log is off.
    pub fn ask_whether_up(&self, is_up: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.is_up.set(Box::new(is_up));
    }

    /// Reads what is read with each scrape.
    fn on_scrape(&self) {
        self.up.set(f64::from(u8::from(self.is_up.get().is_none_or(|is_up| is_up()))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::{BootMs, Now, WallMs};

    #[test]
    fn the_start_is_shown() {
        let metrics = Metrics::new();
        let start = Now { boot: BootMs(5), wall: WallMs(1_800_000_000_250) };
        metrics.table.begun(Incarnation::at((2 << 32) + 5), false, &Frame { run: 7, start, behind_mark: true });
        let text = metrics.render();
        for line in [
            "fencegate_table_incarnation 2\n",
            "fencegate_table_floor 8589934597\n",
            "fencegate_table_unclean_start 1\n",
            "fencegate_clock_behind_mark 1\n",
            "process_start_time_seconds 1800000000.25\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn what_alerts_look_at_begins_at_zero_on_an_agent_too() {
        let text = AgentMetrics::new().render(&Standings::default());
        for line in [
            "fencegate_agent_refusals_total{code=\"GATE_UNREACHABLE\"} 0\n",
            "fencegate_agent_losses_total{reason=\"DEADLINE\"} 0\n",
            "fencegate_agent_objects{standing=\"refused\"} 0\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn what_is_counted_is_rendered_with_help_and_buckets() {
        let metrics = Metrics::new();
        metrics.ledger.committed(0.002, 3);
        metrics.ledger.renewal_rejected(RenewalRejection::NotFound);
        metrics.ledger.clock_stepped(-1_500);
        metrics.api.refused(Code::LeaseHeld);
        let text = metrics.render();
        assert!(text.ends_with('\n') && text.lines().all(|line| !line.is_empty()), "{text}");
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
