//! The registry of one gate or agent: makes metrics, and renders them as text. This file alone imports `metrics`
//! and its Prometheus exporter.
//!
//! Each registry has its own recorder, and nothing is global: two gates in one process stay apart. Handles are
//! held, since finding one by its name costs ten times what counting does. The exporter keeps the samples of
//! histograms until they are rendered or [`Registry::upkeep`] sorts them into their buckets: a timer has to call
//! that.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

pub(super) use metrics::{Counter, Gauge, Histogram};
use metrics::{Key, KeyName, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

static METADATA: Metadata<'static> = Metadata::new(env!("CARGO_PKG_NAME"), Level::INFO, None);

/// What a histogram measures. The exporter needs the buckets of all histograms before the first one is made.
pub(super) struct Measure {
    pub(super) name: &'static str,
    pub(super) buckets: &'static [f64],
    pub(super) help: &'static str,
}

pub(super) struct Registry {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    measures: &'static [&'static Measure],
    passing: Mutex<Vec<PassingGauges>>,
}

impl Registry {
    /// A registry that can make these histograms.
    pub(super) fn new(measures: &'static [&'static Measure]) -> Self {
        let builder = measures.iter().fold(PrometheusBuilder::new(), |builder, measure| {
            let name = Matcher::Full(measure.name.to_owned());
            builder.set_buckets_for_metric(name, measure.buckets).expect("a histogram has buckets")
        });
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        Self { recorder: Arc::new(recorder), handle, measures, passing: Mutex::default() }
    }

    pub(super) fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.counters(name, &[], help).with(&[])
    }

    pub(super) fn counters(&self, name: &'static str, labels: &[&'static str], help: &'static str) -> Counters {
        self.recorder.describe_counter(KeyName::from_const_str(name), None, SharedString::const_str(help));
        Counters(self.family(name, labels))
    }

    pub(super) fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.gauges(name, &[], help).with(&[])
    }

    pub(super) fn gauges(&self, name: &'static str, labels: &[&'static str], help: &'static str) -> Gauges {
        self.recorder.describe_gauge(KeyName::from_const_str(name), None, SharedString::const_str(help));
        Gauges(self.family(name, labels))
    }

    /// Gauges that can be absent.
    pub(super) fn passing_gauges(
        &self,
        name: &'static str,
        labels: &[&'static str],
        help: &'static str,
    ) -> PassingGauges {
        let gauges = PassingGauges { name, labels: labels.into(), help, shown: Arc::default() };
        self.passing.lock().unwrap_or_else(PoisonError::into_inner).push(gauges.clone());
        gauges
    }

    pub(super) fn histogram(&self, measure: &'static Measure) -> Histogram {
        self.histograms(measure, &[]).with(&[])
    }

    pub(super) fn histograms(&self, measure: &'static Measure, labels: &[&'static str]) -> Histograms {
        let is_known = self.measures.iter().any(|known| known.name == measure.name);
        assert!(is_known, "{} is a histogram without buckets", measure.name);
        let help = SharedString::const_str(measure.help);
        self.recorder.describe_histogram(KeyName::from_const_str(measure.name), None, help);
        Histograms(self.family(measure.name, labels))
    }

    fn family(&self, name: &'static str, labels: &[&'static str]) -> Family {
        Family { recorder: Arc::clone(&self.recorder), name, labels: labels.into() }
    }

    /// Sorts the samples of histograms into their buckets, so that they take no memory.
    pub(super) fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// All metrics in Prometheus' text format, sorted by name.
    pub(super) fn render(&self) -> String {
        let passing = Self::new(&[]);
        for gauges in self.passing.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            gauges.show_in(&passing);
        }
        let text = self.handle.render() + &passing.handle.render();
        // The exporter has no order, and blank lines between families. People look for a name, and scripts for lines.
        let mut families: Vec<&str> =
            text.split_inclusive("\n\n").map(|family| family.trim_end_matches('\n')).collect();
        families.sort_unstable();
        families.iter().flat_map(|family| [family, "\n"]).collect()
    }
}

/// Metrics of one name, by label.
#[derive(Clone)]
struct Family {
    recorder: Arc<PrometheusRecorder>,
    name: &'static str,
    labels: Arc<[&'static str]>,
}

impl Family {
    fn key(&self, values: &[&str]) -> Key {
        key(self.name, &self.labels, values)
    }
}

fn key(name: &'static str, labels: &[&'static str], values: &[&str]) -> Key {
    assert_eq!(labels.len(), values.len(), "{name} has these labels: {labels:?}");
    let labels = labels.iter().zip(values).map(|(label, value)| Label::new(*label, (*value).to_owned()));
    Key::from_parts(name, labels.collect::<Vec<_>>())
}

/// Counters of one name, by label.
#[derive(Clone)]
pub(super) struct Counters(Family);

impl Counters {
    pub(super) fn with(&self, values: &[&str]) -> Counter {
        self.0.recorder.register_counter(&self.0.key(values), &METADATA)
    }
}

/// Gauges of one name, by label.
#[derive(Clone)]
pub(super) struct Gauges(Family);

impl Gauges {
    pub(super) fn with(&self, values: &[&str]) -> Gauge {
        self.0.recorder.register_gauge(&self.0.key(values), &METADATA)
    }
}

/// Histograms of one name, by label.
#[derive(Clone)]
pub(super) struct Histograms(Family);

impl Histograms {
    pub(super) fn with(&self, values: &[&str]) -> Histogram {
        self.0.recorder.register_histogram(&self.0.key(values), &METADATA)
    }
}

/// Gauges of one name that come and go. A recorder forgets nothing, so each scrape uses a new one for the present
/// gauges.
#[derive(Clone)]
pub(super) struct PassingGauges {
    name: &'static str,
    labels: Arc<[&'static str]>,
    help: &'static str,
    /// The present gauges, by the values of their labels.
    shown: Arc<Mutex<BTreeMap<Vec<String>, f64>>>,
}

impl PassingGauges {
    pub(super) fn set(&self, values: &[&str], value: f64) {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).insert(values, value);
    }

    pub(super) fn remove(&self, values: &[&str]) {
        let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).remove(&values);
    }

    fn show_in(&self, registry: &Registry) {
        let family = registry.gauges(self.name, &self.labels, self.help);
        for (values, value) in self.shown.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            family.with(&values).set(*value);
        }
    }
}

/// How many samples a worker keeps before it hands them over.
const SAMPLES_MAX: usize = 4_096;

/// One worker's own samples of a histogram.
pub(super) struct LocalHistogram {
    shared: Histogram,
    samples: RefCell<Vec<f64>>,
}

impl LocalHistogram {
    pub(super) fn new(shared: &Histogram) -> Self {
        Self { shared: shared.clone(), samples: RefCell::default() }
    }

    pub(super) fn record(&self, value: f64) {
        let mut samples = self.samples.borrow_mut();
        samples.push(value);
        if samples.len() >= SAMPLES_MAX {
            self.hand_over(&mut samples);
        }
    }

    /// Makes the recorded samples visible to all.
    pub(super) fn flush(&self) {
        self.hand_over(&mut self.samples.borrow_mut());
    }

    fn hand_over(&self, samples: &mut Vec<f64>) {
        for value in samples.drain(..) {
            self.shared.record(value);
        }
    }
}

impl Drop for LocalHistogram {
    fn drop(&mut self) {
        self.flush();
    }
}
