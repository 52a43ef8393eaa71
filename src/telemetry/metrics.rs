//! What the service counts and times, as Prometheus reads it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use super::labels::{
    BuildLabels, CodeLabels, EndLabels, OperationLabels, QueryLabels, RequestLabels, RouteLabels,
    RunLabels, TakeLabels, TokenLabels, TurnLabels,
};
use super::now::Now;
use crate::domain::build;

/// Seconds of what takes milliseconds or minutes.
const WORK: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];
/// Seconds of what takes microseconds while all is well.
const QUERY: [f64; 11] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0];

/// The media type of the text: OpenMetrics 1.0, which Prometheus reads.
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How something ended that was timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Success,
    /// Badly: an error of ours, or code that failed.
    Error,
    /// By its time limit.
    Timeout,
    /// Nobody knows.
    Unknown,
    /// Whoever asked for it went away before its end.
    Cancelled,
}

impl Outcome {
    /// Success or error.
    #[must_use]
    pub const fn of<T, E>(result: &Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Success,
            Err(_) => Self::Error,
        }
    }

    /// The word that stands in labels.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Unknown => "unknown",
            Self::Cancelled => "cancelled",
        }
    }
}

/// All counters and histograms of one service. Labels hold names from the settings and words of ours
/// alone: what callers send makes no new series.
#[derive(Clone)]
pub struct Metrics(Arc<Families>);

struct Families {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RouteLabels, Histogram, Buckets>,
    refusals: Family<CodeLabels, Counter>,
    runs: Family<RunLabels, Counter>,
    sessions_ended: Family<EndLabels, Counter>,
    pool_takes: Family<TakeLabels, Counter>,
    operation_seconds: Family<OperationLabels, Histogram, Buckets>,
    turn_seconds: Family<TurnLabels, Histogram, Buckets>,
    tokens: Family<TokenLabels, Counter>,
    query_seconds: Family<QueryLabels, Histogram, Buckets>,
}

/// Makes histograms.
#[derive(Clone)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let build = BuildLabels { version: build::VERSION, commit: build::COMMIT.unwrap_or("") };
        registry.register(
            "interpreterd_build",
            "Which build of the program runs",
            Info::new(build),
        );
        let families = Families {
            requests: counted(&mut registry, "http_requests", "Requests that were answered"),
            request_seconds: timed(
                &mut registry,
                "http_request_duration_seconds",
                "Seconds from a request's head to the head of its answer; a stream goes on after it",
                &WORK,
            ),
            refusals: counted(
                &mut registry,
                "refusals",
                "Problems that callers were told, by their code",
            ),
            runs: counted(&mut registry, "runs", "Runs whose end was written down"),
            sessions_ended: counted(
                &mut registry,
                "sessions_ended",
                "Sessions whose end was written down",
            ),
            pool_takes: counted(
                &mut registry,
                "pool_takes",
                "Sandboxes for sessions that a pool could serve: taken from it, or made since it was empty",
            ),
            operation_seconds: timed(
                &mut registry,
                "sandbox_operation_duration_seconds",
                "Seconds that work with sandboxes took",
                &WORK,
            ),
            turn_seconds: timed(
                &mut registry,
                "model_turn_duration_seconds",
                "Seconds that a model took for a turn, tries again included",
                &WORK,
            ),
            tokens: counted(
                &mut registry,
                "model_tokens",
                "Tokens as the models' services count them",
            ),
            query_seconds: timed(
                &mut registry,
                "store_operation_duration_seconds",
                "Seconds that the database took, the wait for its turn included",
                &QUERY,
            ),
            registry,
        };
        Self(Arc::new(families))
    }
}

/// Makes and registers counters, whose names get `_total` in the text.
fn counted<L: Labels>(registry: &mut Registry, name: &str, help: &str) -> Family<L, Counter> {
    registered(registry, name, help, Family::default())
}

fn timed<L: Labels>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    buckets: &'static [f64],
) -> Family<L, Histogram, Buckets> {
    registered(registry, name, help, Family::new_with_constructor(Buckets(buckets)))
}

fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(format!("interpreterd_{name}"), help, metric.clone());
    metric
}

/// What tells the series of one family from each other.
trait Labels:
    prometheus_client::encoding::EncodeLabelSet
    + Clone
    + std::hash::Hash
    + Eq
    + std::fmt::Debug
    + Send
    + Sync
    + 'static
{
}

impl<L> Labels for L where
    L: prometheus_client::encoding::EncodeLabelSet
        + Clone
        + std::hash::Hash
        + Eq
        + std::fmt::Debug
        + Send
        + Sync
        + 'static
{
}

impl Metrics {
    /// A request was answered: the head of its answer is there.
    pub fn answered(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        let route = route.to_owned();
        let labels = RequestLabels { method, route: route.clone(), status };
        self.0.requests.get_or_create(&labels).inc();
        let labels = RouteLabels { method, route };
        self.0.request_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// A caller was told a problem.
    pub fn refused(&self, code: &'static str) {
        self.0.refusals.get_or_create(&CodeLabels { code }).inc();
    }

    /// A run's end was written down.
    pub fn run_ended(&self, kind: &'static str, status: &'static str) {
        self.0.runs.get_or_create(&RunLabels { kind, status }).inc();
    }

    /// A session's end was written down.
    pub fn session_ended(&self, provider: &str, reason: &'static str) {
        let labels = EndLabels { provider: provider.to_owned(), reason };
        self.0.sessions_ended.get_or_create(&labels).inc();
    }

    /// A session was given a sandbox that a pool might have had; true where it had.
    pub fn pool_taken(&self, provider: &str, was_ready: bool) {
        let source = if was_ready { "pool" } else { "made" };
        let labels = TakeLabels { provider: provider.to_owned(), source };
        self.0.pool_takes.get_or_create(&labels).inc();
    }

    /// Times work with a sandbox of a provider entry.
    #[must_use]
    pub fn operation(&self, provider: &str, operation: &'static str) -> Timed {
        Timed::begin(self.clone(), Subject::Operation(provider.to_owned(), operation))
    }

    /// Times a model's turn.
    #[must_use]
    pub fn turn(&self, model: &str) -> Timed {
        Timed::begin(self.clone(), Subject::Turn(model.to_owned()))
    }

    /// Times a reading or a writing of the database.
    #[must_use]
    pub fn query(&self, operation: &'static str) -> Timed {
        Timed::begin(self.clone(), Subject::Query(operation))
    }

    /// A model's service counted these tokens.
    pub fn tokens(&self, model: &str, input: u64, output: u64) {
        for (direction, count) in [("input", input), ("output", output)] {
            let labels = TokenLabels { model: model.to_owned(), direction };
            self.0.tokens.get_or_create(&labels).inc_by(count);
        }
    }

    /// Everything as text of OpenMetrics, with how things stand now.
    #[must_use]
    pub fn text(&self, now: &Now) -> String {
        let mut text = String::new();
        for registry in [&self.0.registry, &now.registry()] {
            encode_registry(&mut text, registry).expect("a text takes everything");
        }
        encode_eof(&mut text).expect("a text takes everything");
        text
    }

    /// Every family has a series, so that a table of them can be made.
    pub(super) fn touch(&self) {
        self.answered("", "", 0, Duration::ZERO);
        self.refused("");
        self.run_ended("", "");
        self.session_ended("", "");
        self.pool_taken("", true);
        self.operation("", "").done(Outcome::Success);
        self.turn("").done(Outcome::Success);
        self.query("").done(Outcome::Success);
        self.tokens("", 0, 0);
    }
}

/// What is timed.
enum Subject {
    Operation(String, &'static str),
    Turn(String),
    Query(&'static str),
}

/// Runs from its making until [`Timed::done`]; dropped before, what it times was cancelled, or has met its
/// time limit.
pub struct Timed {
    metrics: Metrics,
    subject: Subject,
    started: Instant,
    /// What it was when it is dropped; None once it is noted.
    dropped: Option<Outcome>,
}

impl Timed {
    fn begin(metrics: Metrics, subject: Subject) -> Self {
        Self { metrics, subject, started: Instant::now(), dropped: Some(Outcome::Cancelled) }
    }

    /// The same for what is dropped by a time limit alone.
    #[must_use]
    pub fn within_limit(mut self) -> Self {
        self.dropped = Some(Outcome::Timeout);
        self
    }

    /// It has ended.
    pub fn done(mut self, outcome: Outcome) {
        self.note(outcome);
    }

    /// Nothing was done that could be timed.
    pub fn forget(mut self) {
        self.dropped = None;
    }

    fn note(&mut self, outcome: Outcome) {
        self.dropped = None;
        let (families, outcome) = (&self.metrics.0, outcome.word());
        let seconds = self.started.elapsed().as_secs_f64();
        match &self.subject {
            Subject::Operation(provider, operation) => {
                let labels = OperationLabels { provider: provider.clone(), operation, outcome };
                families.operation_seconds.get_or_create(&labels).observe(seconds);
            }
            Subject::Turn(model) => {
                let labels = TurnLabels { model: model.clone(), outcome };
                families.turn_seconds.get_or_create(&labels).observe(seconds);
            }
            Subject::Query(operation) => {
                let labels = QueryLabels { operation, outcome };
                families.query_seconds.get_or_create(&labels).observe(seconds);
            }
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        if let Some(outcome) = self.dropped {
            self.note(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_was_cancelled_or_met_its_limit_and_what_is_forgotten_was_not() {
        let metrics = Metrics::default();
        drop(metrics.operation("local", "execute"));
        drop(metrics.operation("local", "create").within_limit());
        metrics.operation("local", "download").forget();
        metrics.operation("local", "terminate").within_limit().done(Outcome::Success);
        let text = metrics.text(&Now::default());
        let counted: Vec<_> =
            text.lines().filter(|line| line.contains("_seconds_count{")).collect();
        let of = |operation: &str, outcome: &str| {
            format!(
                "interpreterd_sandbox_operation_duration_seconds_count{{provider=\"local\",operation=\"{operation}\",outcome=\"{outcome}\"}} 1"
            )
        };
        let mut expected =
            [of("execute", "cancelled"), of("create", "timeout"), of("terminate", "success")];
        expected.sort();
        let mut counted: Vec<_> = counted.into_iter().map(str::to_owned).collect();
        counted.sort();
        assert_eq!(counted, expected);
    }
}
