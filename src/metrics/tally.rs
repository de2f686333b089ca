//! What one worker counts on its own and adds up once per tick, so that a request costs no shared counter. Refusals
//! are rare and are added to the shared counters at once.

use std::{cell::Cell, rc::Rc};

use http::Method;

use super::{
    plane::{OPERATIONS, OperationMetrics, PlaneMetrics},
    registry::{Gauge, LocalHistogram},
};
use crate::fence::Refusal;

/// What one worker has counted since it last added up.
pub struct Tally {
    pub accepted: Cell<u64>,
    pub received: Cell<u64>,
    pub sent: Cell<u64>,
    store_seconds: [LocalHistogram; 2],
    shown: Cell<WorkerGauges>,
}

/// How many of each a worker has at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerGauges {
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
    pub(super) fn new(metrics: &PlaneMetrics) -> Self {
        let [reads, writes] = &metrics.store_seconds;
        Self {
            accepted: Cell::default(),
            received: Cell::default(),
            sent: Cell::default(),
            store_seconds: [LocalHistogram::new(reads), LocalHistogram::new(writes)],
            shown: Cell::default(),
        }
    }

    /// Notes that the store has begun to answer.
    pub fn answered(&self, is_write: bool, seconds: f64) {
        self.store_seconds[usize::from(is_write)].record(seconds);
    }

    /// Adds the counts to the shared counters, and sets the gauges.
    #[allow(clippy::cast_precision_loss, reason = "gauges")]
    pub fn add_up(&self, metrics: &PlaneMetrics, now: WorkerGauges) {
        let before = self.shown.replace(now);
        let change = |gauge: &Gauge, before: usize, now: usize| {
            if before != now {
                gauge.increment(now as f64 - before as f64);
            }
        };
        self.store_seconds.iter().for_each(LocalHistogram::flush);
        metrics.accepted.increment(self.accepted.take());
        metrics.bytes[0].increment(self.received.take());
        metrics.bytes[1].increment(self.sent.take());
        change(&metrics.connections, before.connections, now.connections);
        change(&metrics.store_connections[0], before.store_idle, now.store_idle);
        change(&metrics.store_connections[1], before.store_busy, now.store_busy);
        change(&metrics.store_queue, before.store_queue, now.store_queue);
    }
}

/// What one worker has counted for one route since it last added up. A drop adds the counts up too.
pub struct RouteTally {
    operations: [Rc<OperationTally>; OPERATIONS.len()],
}

impl RouteTally {
    pub(super) fn new(operations: &[OperationMetrics; OPERATIONS.len()]) -> Self {
        Self { operations: operations.each_ref().map(|shared| Rc::new(OperationTally::new(shared))) }
    }

    /// The counts for one write. The caller keeps them until the write has ended.
    #[must_use]
    pub fn operation(&self, method: &Method) -> &Rc<OperationTally> {
        let operation = match *method {
            Method::PUT => 0,
            Method::POST => 1,
            Method::PATCH => 2,
            Method::DELETE => 3,
            _ => 4,
        };
        &self.operations[operation]
    }

    /// Adds the counts to the shared counters.
    pub fn add_up(&self) {
        self.operations.iter().for_each(|operation| operation.add_up());
    }

    /// To be called when another tally takes the place of this one, which is then not added up by a tick any more.
    /// From here on, counts of writes that are still under way are added up at once.
    pub fn retire(&self) {
        for operation in &self.operations {
            operation.is_retired.set(true);
            operation.add_up();
        }
    }
}

impl Drop for RouteTally {
    fn drop(&mut self) {
        self.retire();
    }
}

/// What one worker has counted for one operation on one route.
pub struct OperationTally {
    shared: OperationMetrics,
    validation: LocalHistogram,
    active: Cell<i64>,
    /// The part of `active` that the shared gauge has.
    shown: Cell<i64>,
    is_retired: Cell<bool>,
}

impl OperationTally {
    fn new(shared: &OperationMetrics) -> Self {
        Self {
            validation: LocalHistogram::new(&shared.validation),
            shared: shared.clone(),
            active: Cell::default(),
            shown: Cell::default(),
            is_retired: Cell::default(),
        }
    }

    /// A write was judged.
    pub fn judged(&self, seconds: f64, refusal: Option<&Refusal>) {
        self.validation.record(seconds);
        match refusal {
            // The token is good.
            None
            | Some(
                Refusal::Unusable(_)
                | Refusal::Draining { .. }
                | Refusal::Busy { .. }
                | Refusal::NotYet { .. }
                | Refusal::SourceUnavailable { .. }
                | Refusal::Exhausted { .. }
                | Refusal::Locked { .. },
            ) => {}
            Some(Refusal::Stale { .. } | Refusal::Deposed { .. }) => {
                self.shared.stale.increment(1);
                self.shared.conflicts.increment(1);
            }
            Some(
                Refusal::Unfenced
                | Refusal::Malformed(_)
                | Refusal::Mismatch { .. }
                | Refusal::Ahead { .. }
                | Refusal::Jump { .. }
                | Refusal::NotElected { .. }
                | Refusal::OtherHolder { .. }
                | Refusal::WrongSecret { .. }
                | Refusal::Ended { .. },
            ) => self.shared.conflicts.increment(1),
        }
        self.counted();
    }

    /// A write is on its way from now on.
    pub fn began(&self) {
        self.active.set(self.active.get() + 1);
        self.counted();
    }

    /// A write that began is not on its way any more.
    pub fn ended(&self) {
        self.active.set(self.active.get() - 1);
        self.counted();
    }

    fn counted(&self) {
        if self.is_retired.get() {
            self.add_up();
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    fn add_up(&self) {
        self.validation.flush();
        let active = self.active.get();
        let more = active - self.shown.replace(active);
        if more != 0 {
            self.shared.active.increment(more as f64);
        }
    }
}

impl Drop for OperationTally {
    /// No write can end here any more, so no write is active.
    fn drop(&mut self) {
        self.active.set(0);
        self.add_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fence::{Fence, LeaseSeq},
        metrics::Metrics,
    };

    const PUT: &str = "{resource=\"r\",operation=\"put\"";

    #[track_caller]
    fn shows(metrics: &Metrics, lines: &[&str]) {
        let text = metrics.render();
        for line in lines {
            assert!(text.contains(&format!("{line}\n")), "{line}\n{text}");
        }
    }

    #[track_caller]
    fn shows_active(metrics: &Metrics, active: i64) {
        shows(metrics, &[&format!("active_fenced_operations{PUT}}} {active}")]);
    }

    /// The lines of `fencing_validation_duration_seconds` for PUT, without their name and labels.
    fn validation(metrics: &Metrics) -> Vec<(String, String)> {
        let text = metrics.render();
        let lines = text.lines().filter_map(|line| line.strip_prefix("fencing_validation_duration_seconds_"));
        let lines = lines.filter(|line| line.contains(PUT)).map(|line| line.replace(PUT, ""));
        lines
            .map(|line| line.rsplit_once(' ').map(|(key, value)| (key.to_owned(), value.to_owned())).unwrap())
            .collect()
    }

    fn stale() -> Refusal {
        Refusal::Stale { seq: LeaseSeq::new(1).unwrap(), fence: Fence::new(2), successor: None, certified: None }
    }

    #[test]
    fn what_a_worker_has_counted_is_shown_exactly_once_it_is_added_up() {
        let metrics = Metrics::new();
        let tally = metrics.route("r").tally();
        let put = tally.operation(&Method::PUT);
        // The first one is just within its bucket; the last one is above all buckets.
        for seconds in [0.000_25, 0.000_5, 0.75, 8.0] {
            put.judged(seconds, None);
        }
        assert!(validation(&metrics).iter().all(|(_, value)| value == "0"), "nothing is shared before");
        for _ in 0..2 {
            tally.add_up();
            let shown = validation(&metrics);
            let wanted = [
                ("0.00005", 0),
                ("0.0001", 0),
                ("0.00025", 1),
                ("0.0005", 2),
                ("0.001", 2),
                ("0.0025", 2),
                ("0.005", 2),
                ("0.01", 2),
                ("0.025", 2),
                ("0.05", 2),
                ("0.1", 2),
                ("0.25", 2),
                ("1", 3),
                ("5", 3),
                ("+Inf", 4),
            ];
            let buckets = wanted.iter().map(|(le, count)| (format!("bucket,le=\"{le}\"}}"), count.to_string()));
            let rest = [("sum}".to_owned(), "8.75075".to_owned()), ("count}".to_owned(), "4".to_owned())];
            assert_eq!(shown, buckets.chain(rest).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_the_store_took_is_shown_once_it_is_added_up() {
        let metrics = Metrics::new();
        let worker = metrics.plane.tally();
        let count = |count: u64| format!("fencegate_store_response_seconds_count{{kind=\"write\"}} {count}");
        worker.answered(true, 0.5);
        shows(&metrics, &[&count(0)]);
        for _ in 0..2 {
            worker.add_up(&metrics.plane, WorkerGauges::default());
            shows(&metrics, &[&count(1), "fencegate_store_response_seconds_sum{kind=\"write\"} 0.5"]);
        }
    }

    #[test]
    fn refusals_for_the_token_are_counted_at_once() {
        let metrics = Metrics::new();
        let tally = metrics.route("r").tally();
        let put = tally.operation(&Method::PUT);
        put.judged(0.001, Some(&stale()));
        put.judged(0.001, Some(&Refusal::Unfenced));
        put.judged(0.001, Some(&Refusal::Draining { fence: Fence::new(2) }));
        let conflicts = format!("fencing_token_conflicts_total{PUT}}} 2");
        shows(&metrics, &["stale_fencing_token_total{resource=\"r\"} 1", &conflicts]);
    }

    #[test]
    fn every_method_is_counted_as_its_operation() {
        let metrics = Metrics::new();
        let tally = metrics.route("r").tally();
        let others = [Method::OPTIONS, Method::from_bytes(b"MKCOL").unwrap()];
        let methods = [Method::PUT, Method::POST, Method::PATCH, Method::DELETE];
        methods.iter().chain(&others).for_each(|method| tally.operation(method).began());
        tally.add_up();
        for (operation, active) in OPERATIONS.iter().zip([1, 1, 1, 1, 2]) {
            let line = format!("active_fenced_operations{{resource=\"r\",operation=\"{operation}\"}} {active}");
            shows(&metrics, &[&line]);
        }
    }

    #[test]
    fn what_several_workers_have_counted_is_added_up() {
        let metrics = Metrics::new();
        // Each is a separate thread.
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let (worker, route) = (metrics.plane.tally(), metrics.route("r").tally());
                    let put = route.operation(&Method::PUT);
                    for _ in 0..1_000 {
                        worker.answered(true, 0.5);
                        worker.answered(false, 0.25);
                        put.judged(0.5, None);
                        put.began();
                        route.add_up();
                        put.ended();
                        worker.add_up(&metrics.plane, WorkerGauges { connections: 3, ..WorkerGauges::default() });
                    }
                });
            }
        });
        shows_active(&metrics, 0);
        shows(
            &metrics,
            &[
                &format!("fencing_validation_duration_seconds_sum{PUT}}} 1000"),
                &format!("fencing_validation_duration_seconds_count{PUT}}} 2000"),
                "fencegate_store_response_seconds_bucket{kind=\"write\",le=\"0.25\"} 0",
                "fencegate_store_response_seconds_bucket{kind=\"write\",le=\"1\"} 2000",
                "fencegate_store_response_seconds_sum{kind=\"write\"} 1000",
                "fencegate_store_response_seconds_bucket{kind=\"read\",le=\"0.25\"} 2000",
                "fencegate_store_response_seconds_sum{kind=\"read\"} 500",
                "fencegate_connections 6",
            ],
        );
    }

    #[test]
    fn what_two_workers_have_under_way_is_one_sum() {
        let metrics = Metrics::new();
        let (one, two) = (metrics.route("r").tally(), metrics.route("r").tally());
        one.operation(&Method::PUT).began();
        two.operation(&Method::PUT).began();
        two.operation(&Method::PUT).began();
        one.add_up();
        shows_active(&metrics, 1);
        two.add_up();
        shows_active(&metrics, 3);
        two.operation(&Method::PUT).ended();
        shows_active(&metrics, 3);
        two.add_up();
        shows_active(&metrics, 2);
    }

    #[test]
    fn a_tally_that_is_dropped_is_not_lost() {
        let metrics = Metrics::new();
        let (worker, route) = (metrics.plane.tally(), metrics.route("r").tally());
        worker.answered(true, 0.5);
        route.operation(&Method::PUT).judged(0.5, None);
        drop((worker, route));
        shows(
            &metrics,
            &[
                "fencegate_store_response_seconds_count{kind=\"write\"} 1",
                &format!("fencing_validation_duration_seconds_count{PUT}}} 1"),
            ],
        );
    }

    #[test]
    fn writes_that_outlast_a_reload_are_counted_down_one_by_one() {
        let metrics = Metrics::new();
        let old = metrics.route("r").tally();
        let put = Rc::clone(old.operation(&Method::PUT));
        put.began();
        put.began();
        old.add_up();
        let new = metrics.route("r").tally();
        new.operation(&Method::PUT).began();
        new.add_up();
        shows_active(&metrics, 3);
        // A request under the old plan keeps the old tally alive.
        old.retire();
        put.ended();
        shows_active(&metrics, 2);
        drop(old);
        shows_active(&metrics, 2);
        put.judged(0.5, None);
        put.ended();
        shows_active(&metrics, 1);
        shows(&metrics, &[&format!("fencing_validation_duration_seconds_count{PUT}}} 1")]);
        new.operation(&Method::PUT).ended();
        new.add_up();
        shows_active(&metrics, 0);
    }

    #[test]
    fn a_write_whose_tally_is_gone_does_not_stay_active() {
        let metrics = Metrics::new();
        let tally = metrics.route("r").tally();
        tally.operation(&Method::PUT).began();
        tally.add_up();
        shows_active(&metrics, 1);
        drop(tally);
        shows_active(&metrics, 0);
    }
}
