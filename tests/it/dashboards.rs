//! Dashboards, alerts and their document speak of metrics that are served, and of all of them.

use std::collections::{BTreeMap, BTreeSet};

use interpreterd::telemetry::table::{Described, families, table};
use serde_json::Value;

const DASHBOARD: &str = include_str!("../../deploy/grafana/interpreterd.json");
const ALERTS: &str = include_str!("../../deploy/prometheus/alerts.yaml");
const ALERT_TESTS: &str = include_str!("../../deploy/prometheus/tests.yaml");
const DOCUMENT: &str = include_str!("../../docs/operations.md");
const KUBERNETES: &str = include_str!("../../deploy/kubernetes/README.md");

/// Labels that Prometheus adds to whatever it reads.
const ADDED: [&str; 2] = ["job", "instance"];
/// Series that Prometheus makes by itself.
const ITS_OWN: [&str; 2] = ["up", "ALERTS"];
const WORDS: [&str; 8] = ["sum", "count", "min", "max", "and", "or", "unless", "bool"];
const LABEL_LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// What a query names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query {
    /// Each metric with the labels that it is chosen by.
    metrics: Vec<(String, Vec<String>)>,
    /// Labels that results are put together by.
    by: Vec<String>,
}

impl Query {
    /// Reads as much of PromQL as names metrics and labels.
    fn of(text: &str) -> Self {
        let mut query = Self::default();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            if first == '"' {
                rest = after(&rest[1..], '"');
            } else if first == '[' {
                rest = after(rest, ']');
            } else if first.is_ascii_digit() {
                let number = |c: char| !(c.is_ascii_alphanumeric() || c == '.');
                rest = &rest[rest.find(number).unwrap_or(rest.len())..];
            } else if is_of_a_name(first) {
                let end = rest.find(|c| !is_of_a_name(c)).unwrap_or(rest.len());
                let name;
                (name, rest) = rest.split_at(end);
                let next = rest.trim_start();
                if LABEL_LISTS.contains(&name) {
                    let (list, beyond) = next[1..].split_once(')').unwrap();
                    query.by.extend(list.split(',').map(|label| label.trim().to_owned()));
                    rest = beyond;
                } else if let Some(chosen) = next.strip_prefix('{') {
                    let (labels, beyond) = chosen_by(chosen);
                    query.metrics.push((name.to_owned(), labels));
                    rest = beyond;
                } else if !next.starts_with('(') && !WORDS.contains(&name) {
                    query.metrics.push((name.to_owned(), Vec::new()));
                }
            } else {
                rest = &rest[first.len_utf8()..];
            }
        }
        query
    }
}

const fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

fn after(text: &str, end: char) -> &str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

/// The labels of a selector, and what follows it.
fn chosen_by(mut rest: &str) -> (Vec<String>, &str) {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(beyond) = rest.strip_prefix('}') {
            return (labels, beyond);
        }
        let end = rest.find(|c| !is_of_a_name(c)).unwrap();
        labels.push(rest[..end].to_owned());
        rest = after(after(&rest[end..], '"'), '"');
    }
}

/// Every series that is served, by the name that queries have for it, with its labels.
fn served() -> BTreeMap<String, BTreeSet<String>> {
    let mut served = BTreeMap::new();
    for Described { name, kind, labels, .. } in families() {
        let labels: BTreeSet<String> = labels.into_iter().collect();
        if kind == "histogram" {
            for suffix in ["_sum", "_count"] {
                served.insert(format!("{name}{suffix}"), labels.clone());
            }
            let with_bound = labels.into_iter().chain(["le".to_owned()]).collect();
            served.insert(format!("{name}_bucket"), with_bound);
        } else {
            served.insert(name, labels);
        }
    }
    served
}

/// The labels that a query's result may have. Panics where it names what is not served.
fn labels_of(query: &str) -> BTreeSet<String> {
    let served = served();
    let parsed = Query::of(query);
    assert!(!parsed.metrics.is_empty(), "no metric in {query}");
    let mut known: BTreeSet<String> = ADDED.map(str::to_owned).into();
    for (metric, chosen) in parsed.metrics {
        if ITS_OWN.contains(&metric.as_str()) {
            known.extend(["alertname".to_owned(), "alertstate".to_owned()]);
            continue;
        }
        let labels = served.get(&metric);
        let labels = labels.unwrap_or_else(|| panic!("{metric} is not served: {query}"));
        for label in chosen.iter().filter(|label| !ADDED.contains(&label.as_str())) {
            assert!(labels.contains(label), "{metric} has no label {label}: {query}");
        }
        known.extend(labels.clone());
    }
    for label in parsed.by {
        assert!(known.contains(&label), "nothing has the label {label}: {query}");
    }
    known
}

/// Every value of a key, however deep.
fn texts<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(text) if name == key => found.push(text),
                    _ => texts(field, key, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| texts(value, key, found)),
        _ => {}
    }
}

/// Every `expr:` of a YAML file of rules, be it in quotes, plain or over several lines.
fn expressions(yaml: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = yaml.lines().peekable();
    while let Some(line) = lines.next() {
        let bare = line.trim_start().trim_start_matches("- ");
        let Some(text) = bare.strip_prefix("expr: ") else { continue };
        if text != "|-" {
            found.push(text.trim_matches('\'').to_owned());
            continue;
        }
        let depth = |line: &str| line.len() - line.trim_start().len();
        let mut block = String::new();
        while let Some(more) = lines.next_if(|more| depth(more) > depth(line)) {
            block.push_str(more);
            block.push('\n');
        }
        found.push(block);
    }
    found
}

/// The alerts of the file: name and text.
fn alerts() -> Vec<(&'static str, &'static str)> {
    let blocks = ALERTS.split("- alert: ").skip(1);
    blocks.map(|block| block.split_once('\n').unwrap()).collect()
}

#[test]
fn queries_are_read_with_their_metrics_and_labels() {
    let query = "sum by (job, le) (rate(a_total{b=~\"x|}\", c!=\"y\"}[5m])) / on (job) d > 0.5 and up{job=\"e\"} == 0";
    let metrics = [("a_total", vec!["b", "c"]), ("d", vec![]), ("up", vec!["job"])];
    let owned = |(name, labels): (&str, Vec<&str>)| {
        (name.to_owned(), labels.into_iter().map(str::to_owned).collect())
    };
    let expected = Query {
        metrics: metrics.map(owned).into(),
        by: ["job", "le", "job"].map(str::to_owned).into(),
    };
    assert_eq!(Query::of(query), expected);
}

#[test]
#[should_panic(expected = "interpreterd_rooms is not served")]
fn a_metric_that_is_not_served_is_found() {
    labels_of("sum(interpreterd_rooms)");
}

#[test]
#[should_panic(expected = "interpreterd_sessions has no label kind")]
fn a_label_that_a_metric_does_not_have_is_found() {
    labels_of("sum(interpreterd_sessions{kind=\"local\"})");
}

#[test]
fn the_dashboard_asks_for_what_is_served() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut queries = 0;
    for target in panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten() {
        let known = labels_of(target["expr"].as_str().unwrap());
        let legend = target["legendFormat"].as_str().unwrap();
        for label in legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap()) {
            assert!(known.contains(label), "no label {label} for the legend {legend}");
        }
        queries += 1;
    }
    let mut variables = Vec::new();
    texts(&dashboard["templating"], "query", &mut variables);
    let variables: Vec<_> =
        variables.iter().filter_map(|query| query.strip_prefix("label_values(")).collect();
    assert_eq!(variables.len(), 2);
    for variable in variables {
        labels_of(variable.rsplit_once(',').unwrap().0);
    }
    assert!(queries > 40, "{queries}");
}

#[test]
fn the_alerts_ask_for_what_is_served_and_say_where_it_comes_from() {
    let alerts = alerts();
    assert_eq!(expressions(ALERTS).len(), alerts.len());
    for (name, text) in alerts {
        let known = labels_of(&expressions(text)[0]);
        for rest in text.split("$labels.").skip(1) {
            let label = &rest[..rest.find(|c| !is_of_a_name(c)).unwrap()];
            assert!(known.contains(label), "{name} has no label {label}");
        }
    }
    let series = ALERT_TESTS.split("series: '").skip(1);
    let series: Vec<_> = series.map(|rest| rest.split_once('\'').unwrap().0).collect();
    let tried = expressions(ALERT_TESTS);
    assert!(series.len() > 40 && tried.len() > 2);
    for query in series.into_iter().chain(tried.iter().map(String::as_str)) {
        labels_of(query);
    }
}

#[test]
fn every_metric_that_is_served_is_looked_at() {
    let asked = format!("{DASHBOARD}{ALERTS}");
    for family in families() {
        assert!(asked.contains(&family.name), "{} is on no dashboard", family.name);
    }
}

#[test]
fn every_alert_has_its_section_and_a_trial_and_every_section_its_alert() {
    let names: BTreeSet<&str> = alerts().iter().map(|(name, _)| *name).collect();
    let sections = DOCUMENT.lines().filter_map(|line| line.strip_prefix("### Interpreterd"));
    let sections: BTreeSet<String> =
        sections.map(|rest| format!("Interpreterd{}", rest.trim())).collect();
    assert_eq!(sections, names.iter().map(|name| (*name).to_owned()).collect());
    for (name, text) in alerts() {
        let runbook = format!("runbook: docs/operations.md#{}\n", name.to_lowercase());
        assert!(format!("{}\n", text.trim_end()).contains(&runbook), "{name}");
        assert!(ALERT_TESTS.contains(name), "{name} is not tried in tests.yaml");
    }
}

#[test]
fn the_document_has_the_program_s_own_table_of_metrics() {
    let put = "put the output of `interpreterd metrics` into docs/operations.md";
    assert!(DOCUMENT.contains(&table()), "{put}");
    let known: Vec<String> = families().into_iter().map(|family| family.name).collect();
    let words = [DOCUMENT, KUBERNETES].map(|text| text.split(|c: char| !is_of_a_name(c)));
    let words = words.into_iter().flatten();
    for word in words.filter(|word| word.starts_with("interpreterd_")) {
        let is_known = known.iter().any(|name| word == name);
        assert!(is_known, "{word} is not served");
    }
}
