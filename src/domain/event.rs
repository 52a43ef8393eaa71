//! What happens while a run goes on, on its way to whoever listens.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use tokio::sync::watch;

use crate::domain::execution::Output;
use crate::domain::file::ChangedFile;
use crate::domain::run::RunSummary;

/// Events that are kept for readers who come late or read slowly.
const KEPT_EVENTS: usize = 4096;
/// Bytes of events that are kept.
const KEPT_BYTES: usize = 4 << 20;

/// One thing that happened while a run went on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Event {
    /// The run is written down and begins.
    Started(Box<RunSummary>),
    /// A piece of standard output.
    Stdout {
        /// Whole characters.
        text: String,
    },
    /// A piece of standard error.
    Stderr {
        /// Whole characters.
        text: String,
    },
    /// A rich result.
    Output(Output),
    /// A file that was made or changed.
    File(ChangedFile),
    /// A piece of the model's text, as it comes. What counts is the text of the whole answer.
    ModelDelta {
        /// Whole characters.
        text: String,
    },
    /// The model's cell begins.
    ToolStarted {
        /// The model's id for the call.
        id: String,
        /// The code.
        code: String,
    },
    /// The model's cell has ended.
    ToolCompleted {
        /// The model's id for the call.
        id: String,
        /// How it ended.
        status: crate::domain::execution::ExecutionStatus,
        /// The error as text.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Events were lost because they were read too slowly.
    Gap {
        /// How many.
        missed: u64,
    },
}

impl Event {
    /// The event's name on the wire.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Started(_) => "run.started",
            Self::Stdout { .. } => "stdout",
            Self::Stderr { .. } => "stderr",
            Self::Output(_) => "output",
            Self::File(_) => "file",
            Self::ModelDelta { .. } => "model.delta",
            Self::ToolStarted { .. } => "tool.started",
            Self::ToolCompleted { .. } => "tool.completed",
            Self::Gap { .. } => "gap",
        }
    }
}

/// The name of the last event of every run; its data is the whole answer.
pub const COMPLETED: &str = "run.completed";

/// An event as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Grows with each event of a run.
    pub id: u64,
    /// Such as `stdout`.
    pub name: String,
    /// JSON.
    pub data: String,
}

/// The events of one run: written without waiting, read from any place.
#[derive(Debug)]
pub struct EventLog {
    inside: Mutex<Inside>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inside {
    events: VecDeque<Sent>,
    bytes: usize,
    last_id: u64,
    closed: bool,
}

/// What comes after an event.
enum Found {
    Event(Sent),
    End,
    /// It is yet to come.
    Later,
}

impl Default for EventLog {
    fn default() -> Self {
        Self { inside: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl EventLog {
    fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.inside.lock().expect("no panic while the log is held")
    }

    /// Writes an event; the oldest ones make room.
    pub fn push(&self, event: &Event) {
        let data = serde_json::to_string(event).expect("events have string keys");
        self.write(event.name(), data);
    }

    /// Writes the last event, the whole answer.
    pub fn complete(&self, data: String) {
        self.write(COMPLETED, data);
        self.close();
    }

    /// No more events come.
    pub fn close(&self) {
        self.inside().closed = true;
        self.changed.send_modify(|version| *version += 1);
    }

    /// True when no more events come.
    pub fn is_closed(&self) -> bool {
        self.inside().closed
    }

    fn write(&self, name: &str, data: String) {
        let mut inside = self.inside();
        if inside.closed {
            return;
        }
        inside.last_id += 1;
        inside.bytes += data.len();
        let sent = Sent { id: inside.last_id, name: name.to_owned(), data };
        inside.events.push_back(sent);
        while inside.events.len() > 1
            && (inside.events.len() > KEPT_EVENTS || inside.bytes > KEPT_BYTES)
        {
            let oldest = inside.events.pop_front();
            inside.bytes -= oldest.map_or(0, |oldest| oldest.data.len());
        }
        drop(inside);
        self.changed.send_modify(|version| *version += 1);
    }

    /// The event after this one, waiting for it; a gap where it is not kept any more; None at the end.
    pub async fn after(&self, id: u64) -> Option<Sent> {
        let mut changed = self.changed.subscribe();
        loop {
            match self.find(id) {
                Found::Event(sent) => return Some(sent),
                Found::End => return None,
                Found::Later if changed.changed().await.is_err() => return None,
                Found::Later => {}
            }
        }
    }

    fn find(&self, id: u64) -> Found {
        let inside = self.inside();
        let none = if inside.closed { Found::End } else { Found::Later };
        let Some(first) = inside.events.front() else { return none };
        if first.id > id.saturating_add(1) {
            let missed = first.id - id - 1;
            let data = serde_json::to_string(&Event::Gap { missed }).expect("a gap is a number");
            return Found::Event(Sent { id: first.id - 1, name: "gap".to_owned(), data });
        }
        let place = usize::try_from(id.saturating_add(1) - first.id).unwrap_or(usize::MAX);
        inside.events.get(place).map_or(none, |sent| Found::Event(sent.clone()))
    }

    /// All events that are kept, without the last one of a run.
    #[must_use]
    pub fn kept(&self) -> Vec<Sent> {
        self.inside().events.iter().filter(|sent| sent.name != COMPLETED).cloned().collect()
    }
}

/// Takes events from a provider and never makes it wait.
#[derive(Debug, Clone)]
pub struct OutputSink(Option<Arc<EventLog>>);

impl OutputSink {
    /// A sink that nobody reads.
    #[must_use]
    pub fn discard() -> Self {
        Self(None)
    }

    /// A sink that writes into a log.
    #[must_use]
    pub fn into_log(log: Arc<EventLog>) -> Self {
        Self(Some(log))
    }

    /// True when somebody may read: a provider may skip making events otherwise.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.0.is_some()
    }

    /// Passes an event on.
    pub fn send(&self, event: Event) {
        if let Some(log) = &self.0 {
            log.push(&event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: usize) -> Event {
        Event::Stdout { text: number.to_string() }
    }

    #[tokio::test]
    async fn events_are_read_in_order_from_any_place_to_the_end() {
        let log = EventLog::default();
        log.push(&text(1));
        log.push(&text(2));
        log.complete("{}".to_owned());
        log.push(&text(3));
        let mut read = Vec::new();
        let mut id = 0;
        while let Some(sent) = log.after(id).await {
            id = sent.id;
            read.push((sent.id, sent.name, sent.data));
        }
        let event = |id, name: &str, data: &str| (id, name.to_owned(), data.to_owned());
        assert_eq!(
            read,
            [
                event(1, "stdout", r#"{"text":"1"}"#),
                event(2, "stdout", r#"{"text":"2"}"#),
                event(3, COMPLETED, "{}")
            ]
        );
        assert_eq!(log.after(1).await.map(|sent| sent.id), Some(2));
        assert_eq!(log.after(99).await, None);
        assert_eq!(log.after(u64::MAX).await, None);
    }

    #[tokio::test]
    async fn a_slow_reader_gets_a_gap_and_then_what_is_kept() {
        let log = EventLog::default();
        for number in 0..KEPT_EVENTS + 10 {
            log.push(&text(number));
        }
        let gap = log.after(0).await.expect("a gap");
        assert_eq!((gap.id, gap.name.as_str(), gap.data.as_str()), (10, "gap", r#"{"missed":10}"#));
        assert_eq!(log.after(gap.id).await.map(|sent| sent.id), Some(11));
        let large = Event::Stdout { text: "x".repeat(KEPT_BYTES) };
        log.push(&large);
        assert_eq!(log.kept().len(), 1, "bytes are bounded too");
    }

    #[tokio::test]
    async fn a_reader_waits_for_what_is_to_come() {
        let log = Arc::new(EventLog::default());
        let reading = log.after(0);
        let writing = async { log.push(&text(1)) };
        let (read, ()) = tokio::join!(reading, writing);
        assert_eq!(read.map(|sent| sent.id), Some(1));
    }
}
