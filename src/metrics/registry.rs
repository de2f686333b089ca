//! The registry of one gate: makes metrics, and renders them as text. The only import of `prometheus`.

pub(super) use prometheus::{Gauge, Histogram, IntCounter as Counter, local::LocalHistogram};
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry as Collectors, TextEncoder, core::Collector,
    proto::MetricFamily,
};

/// Counters of one name, by label.
pub(super) type Counters = IntCounterVec;
/// Gauges of one name, by label.
pub(super) type Gauges = GaugeVec;
/// Histograms of one name, by label.
pub(super) type Histograms = HistogramVec;

/// The label that is written first, before `operation`: the crate sorts labels by name.
const FIRST_LABEL: &str = "resource";
const SOUND: &str = "names are valid, and each is used once";

#[derive(Default)]
pub(super) struct Registry(Collectors);

impl Registry {
    pub(super) fn counter(&self, name: &str, help: &str) -> Counter {
        self.registered(Counter::new(name, help))
    }

    pub(super) fn counters(&self, name: &str, labels: &[&str], help: &str) -> Counters {
        self.registered(Counters::new(Opts::new(name, help), labels))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.registered(Gauge::new(name, help))
    }

    pub(super) fn gauges(&self, name: &str, labels: &[&str], help: &str) -> Gauges {
        self.registered(Gauges::new(Opts::new(name, help), labels))
    }

    pub(super) fn histogram(&self, name: &str, buckets: &[f64], help: &str) -> Histogram {
        self.registered(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }

    pub(super) fn histograms(&self, name: &str, labels: &[&str], buckets: &[f64], help: &str) -> Histograms {
        self.registered(Histograms::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels))
    }

    fn registered<M: Collector + Clone + 'static>(&self, made: prometheus::Result<M>) -> M {
        let made = made.expect(SOUND);
        self.0.register(Box::new(made.clone())).expect(SOUND);
        made
    }

    /// Everything, in text format 0.0.4.
    pub(super) fn render(&self) -> String {
        let mut families = self.0.gather();
        for metric in families.iter_mut().flat_map(MetricFamily::mut_metric) {
            let mut labels = metric.take_label();
            labels.sort_by_key(|label| label.name() != FIRST_LABEL);
            metric.set_label(labels);
        }
        TextEncoder::new().encode_to_string(&families).expect("what is gathered has names and samples")
    }
}
