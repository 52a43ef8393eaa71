//! What goes on beside a cell that runs: listeners hear it, and its caller can stop it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::machine::{Again, Machine, Told};
use crate::domain::coded::chain;
use crate::domain::event::OutputSink;
use crate::sandbox::streams::Stream;
use crate::sandbox::told::Heard;

/// Cells that are over sooner are told of when they are.
const FIRST_LOOK: Duration = Duration::from_millis(300);
/// AWS lets an account make some thirty calls a second.
const LOOKS_EVERY: Duration = Duration::from_millis(250);
/// How long one look waits for news.
const LOOK: Duration = Duration::from_secs(8);
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// How long a cell that was told to stop may take to hear it.
const STOP_LIMIT: Duration = Duration::from_secs(4);

/// A cell that runs, and who cares.
pub(super) struct Running<'a> {
    machine: &'a Machine,
    /// The execution's id.
    id: &'a str,
    interrupt: &'a Notify,
    sink: &'a OutputSink,
    was_asked_to_stop: AtomicBool,
}

/// It was told to stop, and went on.
pub(super) struct DidNotHear;

#[derive(Deserialize)]
struct News {
    is_over: bool,
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    stderr: String,
}

impl<'a> Running<'a> {
    pub(super) fn new(
        machine: &'a Machine,
        id: &'a str,
        interrupt: &'a Notify,
        sink: &'a OutputSink,
    ) -> Self {
        Self { machine, id, interrupt, sink, was_asked_to_stop: AtomicBool::new(false) }
    }

    pub(super) fn was_asked_to_stop(&self) -> bool {
        self.was_asked_to_stop.load(Ordering::SeqCst)
    }

    /// Awaits what comes of it. Meanwhile listeners hear it, and it is stopped when that is asked for.
    pub(super) async fn until<T>(
        &self,
        heard: &mut Heard,
        end: impl Future<Output = T>,
    ) -> Result<T, DidNotHear> {
        tokio::select! {
            biased;
            ended = end => Ok(ended),
            () = self.stop() => Err(DidNotHear),
            () = self.follow(heard) => Err(DidNotHear),
        }
    }

    /// Once it is asked for, tells the cell to stop, by a file that it looks for; over when it did not.
    async fn stop(&self) {
        self.interrupt.notified().await;
        self.was_asked_to_stop.store(true, Ordering::SeqCst);
        let stopping = async {
            if let Err(error) = self.machine.bring(&stop_file(self.id), Bytes::new()).await {
                let (id, cause) = (&self.machine.id, chain(&error));
                tracing::warn!(error = cause, sandbox.id = id, "a cell could not be told to stop");
            }
            std::future::pending::<()>().await;
        };
        let _ = tokio::time::timeout(STOP_LIMIT, stopping).await;
    }

    /// Tells listeners what comes, for as long as that works: what they have not heard then, they hear
    /// at the end. Never over.
    async fn follow(&self, heard: &mut Heard) {
        sleep(FIRST_LOOK).await;
        loop {
            if self.sink.is_read() && !self.look(heard).await {
                return std::future::pending().await;
            }
            sleep(LOOKS_EVERY).await;
        }
    }

    /// One look for news. False when there is no use in another one.
    async fn look(&self, heard: &mut Heard) -> bool {
        let told =
            json!({"do": "follow", "id": self.id, "seen": heard.bytes, "seconds": LOOK.as_secs()});
        let news = self.machine.work::<News>(told, LOOK + CALL_LIMIT, Again::Never).await;
        let Ok(Ok(News { is_over, stdout, stderr })) = news.map(Told::expected) else {
            return false;
        };
        for (stream, text) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
            let Ok(bytes) = STANDARD.decode(text) else { return false };
            heard.tell(stream, &bytes, self.sink);
        }
        !is_over
    }
}

/// The name of the file that tells a cell to stop.
pub(super) fn stop_file(id: &str) -> String {
    format!("stop-{id}")
}
