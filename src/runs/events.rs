//! The events of a run: as they come, or again from what is stored.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde::{Deserialize, Serialize};

use super::{RunError, Runs};
use crate::domain::event::{COMPLETED, Event, EventLog, Sent};
use crate::domain::id::{RunId, Tenant};
use crate::domain::run::{Run, RunKind, RunStatus};

/// Events in order, to the end.
pub type Events = BoxStream<'static, Sent>;

/// An event as a stored log holds it.
#[derive(Serialize, Deserialize)]
struct StoredEvent {
    id: u64,
    name: String,
    data: String,
}

impl Runs {
    /// The events of a run after this id: live ones as they come, those of an ended run at once.
    pub async fn events(&self, tenant: &Tenant, id: RunId, after: u64) -> Result<Events, RunError> {
        if let Some(live) = self.desk.live.get(tenant, id) {
            if live.loud {
                return Ok(follow(live.log, after));
            }
            // nobody asked for its events: they come when it has ended
            let runs = self.clone();
            let tenant = tenant.clone();
            let later = async move {
                while live.log.after(u64::MAX - 1).await.is_some() {}
                runs.replay(&tenant, id, after).await.unwrap_or_else(|_| stream::empty().boxed())
            };
            return Ok(stream::once(later).flatten().boxed());
        }
        self.replay(tenant, id, after).await
    }

    async fn replay(&self, tenant: &Tenant, id: RunId, after: u64) -> Result<Events, RunError> {
        let run = self.get(tenant, id).await?;
        let stored = self.desk.store.events(tenant, id).await?;
        // without a log of its own the ids are not those that a reader may have seen
        let known = stored.is_some();
        let mut events = stored.map_or_else(|| retold(&run), |stored| read(&stored));
        let kept_from = events.first().map_or(1, |event| event.id);
        let last = events.last().map_or(0, |event| event.id).max(if known { 0 } else { after });
        events.retain(|event| event.id > after);
        if kept_from > after.saturating_add(1) {
            events.insert(0, gap(after, kept_from));
        }
        let ended = !matches!(run.summary.status, RunStatus::Queued | RunStatus::Running);
        let id = last.saturating_add(1);
        if ended && (!known || id > after) {
            events.push(Sent { id, name: COMPLETED.to_owned(), data: whole(&run) });
        }
        Ok(stream::iter(events).boxed())
    }
}

/// What stands for events that were not kept.
fn gap(after: u64, kept_from: u64) -> Sent {
    let gap = Event::Gap { missed: kept_from - after - 1 };
    let data = serde_json::to_string(&gap).expect("a gap is a number");
    Sent { id: kept_from - 1, name: gap.name().to_owned(), data }
}

/// The events of a log after this id.
pub(super) fn follow(log: Arc<EventLog>, after: u64) -> Events {
    let next = |(log, after): (Arc<EventLog>, u64)| async move {
        let sent = log.after(after).await?;
        let after = sent.id;
        Some((sent, (log, after)))
    };
    stream::unfold((log, after), next).boxed()
}

/// A log as it is stored, a line an event.
pub(super) fn written(log: &EventLog) -> Vec<u8> {
    let mut lines = Vec::new();
    for Sent { id, name, data } in log.kept() {
        serde_json::to_writer(&mut lines, &StoredEvent { id, name, data })
            .expect("events have string keys");
        lines.push(b'\n');
    }
    lines
}

fn read(lines: &[u8]) -> Vec<Sent> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let event = |line| serde_json::from_slice(line).ok();
    lines.filter_map(event).map(|StoredEvent { id, name, data }| Sent { id, name, data }).collect()
}

/// The events of a run whose own were not kept, from what it put out.
fn retold(run: &Run) -> Vec<Sent> {
    let log = EventLog::default();
    if run.summary.started_at.is_some() {
        log.push(&Event::Started(Box::new(run.summary.clone())));
    }
    let with_tools = run.summary.kind == RunKind::Interpret;
    for result in &run.code_exec_results {
        let execution = &result.execution;
        let (id, code) = (result.id.clone(), result.code.clone());
        if with_tools {
            log.push(&Event::ToolStarted { id: id.clone(), code });
        }
        if !execution.stdout.is_empty() {
            log.push(&Event::Stdout { text: execution.stdout.clone() });
        }
        if !execution.stderr.is_empty() {
            log.push(&Event::Stderr { text: execution.stderr.clone() });
        }
        for output in &execution.outputs {
            log.push(&Event::Output(output.clone()));
        }
        for file in &execution.files {
            log.push(&Event::File(file.clone()));
        }
        if with_tools {
            let error = execution.error.clone();
            log.push(&Event::ToolCompleted { id, status: execution.status, error });
        }
    }
    log.kept()
}

/// What the route that made the run would have answered.
fn whole(run: &Run) -> String {
    let json = match (run.summary.kind, run.code_exec_results.first()) {
        (RunKind::Interpret, _) | (_, None) => serde_json::to_string(run),
        (RunKind::Exec | RunKind::Shell | RunKind::Execute, Some(result)) => {
            serde_json::to_string(&result.execution)
        }
    };
    json.expect("answers have string keys")
}
