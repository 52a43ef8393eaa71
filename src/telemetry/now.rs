//! How things stand when somebody looks: what is read, not counted.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use super::labels::{KindLabels, ProviderLabels, StateLabels};
use super::process::Process;

/// How things stand in this replica.
#[derive(Debug, Default)]
pub struct Now {
    /// How many sessions of a provider entry are in a state.
    pub sessions: Vec<(String, &'static str, usize)>,
    /// How many sessions there may be.
    pub sessions_max: u32,
    /// Cells that wait for their turn in a session.
    pub cells_waiting: u64,
    /// Sandboxes that a provider entry's pool has ready, and how many it keeps.
    pub pools: Vec<(String, u32, u32)>,
    /// How many runs of a kind go on or wait.
    pub runs: Vec<(&'static str, usize)>,
    /// The database answers.
    pub store_up: bool,
    /// Ends of runs that the database has not taken yet.
    pub journal_entries: usize,
    /// Files that the bucket has not taken yet.
    pub blobs_waiting: usize,
}

impl Now {
    /// All of it, and what the kernel says of this process.
    pub(super) fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        let sessions = self.sessions.iter().map(|(provider, state, count)| {
            (StateLabels { provider: provider.clone(), state }, *count as i64)
        });
        gauges(&mut registry, "sessions", "Sessions that live, by state", sessions);
        let max = i64::from(self.sessions_max);
        gauge(&mut registry, "sessions_max", "Sessions that may live at once", max);
        let waiting = self.cells_waiting as i64;
        gauge(
            &mut registry,
            "cells_waiting",
            "Cells that wait for their turn in a session",
            waiting,
        );
        let labels = |provider: &String| ProviderLabels { provider: provider.clone() };
        let ready = self.pools.iter().map(|(name, ready, _)| (labels(name), i64::from(*ready)));
        gauges(&mut registry, "pool_ready", "Sandboxes that are ready for sessions to come", ready);
        let size = self.pools.iter().map(|(name, _, size)| (labels(name), i64::from(*size)));
        gauges(&mut registry, "pool_size", "Sandboxes that the pool keeps ready", size);
        let runs = self.runs.iter().map(|(kind, count)| (KindLabels { kind }, *count as i64));
        gauges(&mut registry, "runs_live", "Runs that go on or wait for their turn", runs);
        let up = i64::from(self.store_up);
        gauge(&mut registry, "store_up", "1 while the database answers, 0 while it does not", up);
        let entries = self.journal_entries as i64;
        gauge(
            &mut registry,
            "journal_entries",
            "Ends of runs that the database has not taken yet",
            entries,
        );
        let blobs = self.blobs_waiting as i64;
        gauge(&mut registry, "blobs_waiting", "Files that the bucket has not taken yet", blobs);
        of_process(&mut registry, &Process::read());
        registry
    }

    /// One of each, so that a table of them can be made.
    pub(super) fn example() -> Self {
        Self {
            sessions: vec![(String::new(), "", 0)],
            pools: vec![(String::new(), 0, 0)],
            runs: vec![("", 0)],
            ..Self::default()
        }
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: i64) {
    registry.register(format!("interpreterd_{name}"), help, ConstGauge::new(value));
}

fn gauges<L>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (L, i64)>,
) where
    L: EncodeLabelSet + Clone + std::hash::Hash + Eq + std::fmt::Debug + Send + Sync + 'static,
{
    let family = Family::<L, Gauge>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    registry.register(format!("interpreterd_{name}"), help, family);
}

/// What Prometheus's own clients tell of a process, under the same names.
fn of_process(registry: &mut Registry, process: &Process) {
    let mut tell = |name: &str, help: &str, value: Option<i64>| {
        if let Some(value) = value {
            registry.register(format!("process_{name}"), help, ConstGauge::new(value));
        }
    };
    let resident = process.resident_bytes.map(|bytes| bytes as i64);
    tell("resident_memory_bytes", "Resident memory of the service", resident);
    tell("open_fds", "Open descriptors of the service", process.open_fds.map(|fds| fds as i64));
    tell("max_fds", "Descriptors that may be open", process.max_fds.map(|fds| fds as i64));
    let started = process.started_at.map(|seconds| seconds as i64);
    tell("start_time_seconds", "When the service started, in seconds since 1970", started);
    if let Some(used) = process.processors {
        registry.register(
            "process_cpu_seconds",
            "Seconds of processors that the service has used",
            ConstCounter::new(used.as_secs_f64()),
        );
    }
}
