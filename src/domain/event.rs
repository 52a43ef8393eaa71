//! What happens while a cell runs, on its way to whoever listens.

use tokio::sync::mpsc;

use crate::domain::execution::Output;

/// How many events wait for a slow reader before it misses some.
const WAITING: usize = 256;

/// One thing that happened while a cell ran.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A piece of standard output.
    Stdout(String),
    /// A piece of standard error.
    Stderr(String),
    /// A rich result.
    Output(Output),
}

/// Takes events from a provider and never makes it wait: what a slow reader cannot take is dropped.
#[derive(Debug, Clone)]
pub struct OutputSink(Option<mpsc::Sender<Event>>);

impl OutputSink {
    /// A sink that nobody reads.
    #[must_use]
    pub fn discard() -> Self {
        Self(None)
    }

    /// A sink and its reader.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(Some(sender)), receiver)
    }

    /// True when somebody reads: a provider may skip making events otherwise.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.0.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Passes an event on, or drops it.
    pub fn send(&self, event: Event) {
        if let Some(sender) = &self.0 {
            let _ = sender.try_send(event);
        }
    }
}
