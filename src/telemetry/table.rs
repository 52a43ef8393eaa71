//! The table of all metrics, for documents and dashboards.

use std::collections::BTreeMap;

use super::metrics::Metrics;
use super::now::Now;

/// One metric as it is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its name in queries; a histogram's series add `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// What tells its series from each other.
    pub labels: Vec<String>,
    /// What it says.
    pub help: String,
}

/// All metrics that `GET /metrics` may serve.
#[must_use]
pub fn families() -> Vec<Described> {
    let metrics = Metrics::default();
    metrics.touch();
    read(&metrics.text(&Now::example()))
}

/// The table of all metrics as Markdown.
#[must_use]
pub fn table() -> String {
    let mut table = String::from("| metric | kind | labels | what it says |\n|---|---|---|---|\n");
    for Described { name, kind, labels, help } in families() {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        table.push_str(&format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", ")));
    }
    table
}

/// Reads the text format: HELP and TYPE of a family, then its series.
fn read(text: &str) -> Vec<Described> {
    let mut help = BTreeMap::new();
    let mut families: Vec<Described> = Vec::new();
    for line in text.lines() {
        if let Some((name, words)) =
            line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            help.insert(name, words.trim_end_matches('.').to_owned());
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            families.push(Described {
                name: format!("{name}{suffix}"),
                kind: kind.replace("info", "gauge"),
                labels: Vec::new(),
                help: help.remove(name).unwrap_or_default(),
            });
        } else if let (Some(family), Some(set)) = (families.last_mut(), labels_of(line)) {
            family.labels = set;
        }
    }
    families
}

/// The names of a series' labels, but for the one that a histogram adds.
fn labels_of(series: &str) -> Option<Vec<String>> {
    let (_, set) = series.split_once('{')?;
    let (set, _) = set.rsplit_once('}')?;
    let names = set.split("\",").filter_map(|label| label.split_once("=\""));
    Some(names.map(|(name, _)| name.to_owned()).filter(|name| name != "le").collect())
}
