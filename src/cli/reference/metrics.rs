//! docs/reference/metrics.md, of what a scrape says: names, help texts, kinds and labels stand in `metrics/` only.

use std::collections::BTreeMap;

use super::{Table, code, codes, fill};
use crate::metrics::{AgentMetrics, Metrics, Standings};

/// Of a label with more values than this, such as `code`, the page does not list them.
const VALUES_MAX: usize = 10;

/// Which metrics stand together, by the beginnings of their names. What fits nowhere else is in the first group.
const GROUPS: [(&str, &[&str]); 4] = [
    ("writes", &[]),
    (
        "clients",
        &["fencegate_bytes_", "fencegate_connections", "fencegate_held_", "fencegate_store_", "fencegate_tls_"],
    ),
    (
        "leases",
        &[
            "fencegate_advances_",
            "fencegate_api_",
            "fencegate_certificates_",
            "fencegate_drain_",
            "fencegate_kubernetes_",
            "fencegate_lease",
            "fencegate_migrations_",
            "fencegate_watchers",
            "lease_",
        ],
    ),
    (
        "process",
        &[
            "fencegate_audit_",
            "fencegate_build_",
            "fencegate_clock_",
            "fencegate_ledger_",
            "fencegate_reload",
            "fencegate_table_",
            "process_",
        ],
    ),
];

/// A metric, as a scrape shows it.
#[derive(Default)]
struct Family {
    kind: String,
    help: String,
    /// Labels with their values, in the order in which they are written.
    labels: Vec<(String, Vec<String>)>,
}

pub(super) fn page() -> String {
    let gate = families(&gate());
    let agent = families(&AgentMetrics::new().render(&Standings::default()));
    fill(include_str!("templates/metrics.md"), |place, _| match place {
        "agent" => table(agent.iter()),
        place => table(gate.iter().filter(|(name, _)| group(name) == place)),
    })
}

/// A scrape of a gate. What has no value before it is used is used here.
fn gate() -> String {
    let metrics = Metrics::new();
    let _route = metrics.route("default");
    metrics.kubernetes.watching("default", true);
    for result in ["held", "gone", "away"] {
        metrics.kubernetes.read(result);
    }
    metrics.plane.ask_for_certificate(|| Some(1));
    metrics.render()
}

fn group(name: &str) -> &'static str {
    let has = |(_, starts): &&(&str, &[&str])| starts.iter().any(|start| name.starts_with(start));
    GROUPS.iter().find(has).map_or(GROUPS[0].0, |(title, _)| title)
}

/// Every metric of a scrape, by name.
fn families(scrape: &str) -> BTreeMap<String, Family> {
    let mut all: BTreeMap<String, Family> = BTreeMap::new();
    for line in scrape.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(help)) => {
                help.clone_into(&mut all.entry(name.to_owned()).or_default().help);
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                kind.clone_into(&mut all.entry(name.to_owned()).or_default().kind);
            }
            _ => sample(&mut all, line),
        }
    }
    all
}

/// Notes the labels of one sample.
fn sample(all: &mut BTreeMap<String, Family>, line: &str) {
    let Some((name, rest)) = line.split_once('{') else { return };
    let Some((labels, _value)) = rest.rsplit_once('}') else { return };
    let whole = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
    let name = whole.filter(|whole| all.contains_key(*whole)).unwrap_or(name);
    let Some(family) = all.get_mut(name) else { return };
    for (label, value) in labels.split(',').filter_map(|label| label.split_once('=')) {
        let (label, value) = (label.to_owned(), value.trim_matches('"').to_owned());
        match family.labels.iter_mut().find(|(each, _)| *each == label) {
            _ if label == "le" => {}
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => family.labels.push((label, vec![value])),
        }
    }
}

fn table<'a>(families: impl Iterator<Item = (&'a String, &'a Family)>) -> String {
    let mut table = Table::new(&["metric", "type", "labels", "meaning"]);
    for (name, Family { kind, help, labels }) in families {
        let labels: Vec<_> = labels.iter().map(|(label, values)| described(label, values)).collect();
        table.row([&code(name), kind, &labels.join("; "), help]);
    }
    table.text
}

/// A label, with its values where they are few and known.
fn described(label: &str, values: &[String]) -> String {
    if !(2..=VALUES_MAX).contains(&values.len()) {
        return code(label);
    }
    let mut values = values.to_vec();
    values.sort();
    format!("{}: {}", code(label), codes(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_help_text_and_a_kind() {
        let agent = AgentMetrics::new().render(&Standings::default());
        for (name, Family { kind, help, .. }) in families(&gate()).into_iter().chain(families(&agent)) {
            assert!(!help.is_empty() && ["counter", "gauge", "histogram"].contains(&kind.as_str()), "{name}");
        }
    }

    #[test]
    fn a_histogram_is_one_metric_whose_buckets_are_no_label() {
        let text = "# HELP a_seconds How long.\n# TYPE a_seconds histogram\na_seconds_bucket{kind=\"x\",le=\"1\"} 0\n\
                    a_seconds_count{kind=\"y\"} 0\n";
        let all = families(text);
        assert_eq!(all.len(), 1);
        assert_eq!(
            table(all.iter()).lines().last(),
            Some("| `a_seconds` | histogram | `kind`: `x`, `y` | How long. |")
        );
    }
}
