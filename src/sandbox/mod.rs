//! Sandboxes: where code runs, and who makes them.

#[cfg(feature = "bedrock")]
pub mod bedrock;
pub mod connect;
pub mod e2b;
mod error;
mod host;
mod listing;
pub mod local;
mod observed;
mod outcome;
mod output;
mod packages;
mod pip;
pub mod pool;
mod program;
pub mod pydantic;
mod streams;
mod told;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

pub use error::SandboxError;
pub use packages::PackagesError;

use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Execution};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::SessionId;
use crate::domain::limits::{Limits, LimitsRequest};
use crate::domain::package::PackageSet;
use crate::domain::provider::{Capabilities, Isolation, Primed};
use crate::domain::session::SandboxRecord;

/// A file's content on its way in or out.
pub type ByteStream = BoxStream<'static, std::io::Result<Bytes>>;

/// A place where code runs.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// All that is needed to find it again.
    fn record(&self) -> SandboxRecord;

    /// The absolute name of its files folder, as its code sees it.
    fn files_dir(&self) -> String;

    /// Becomes the sandbox of a session that it was not made for: its environment and lifetime are
    /// that session's from now on. An error when it is no longer fit for a first cell.
    async fn adopt(&self, spec: &SandboxSpec) -> Result<(), SandboxError>;

    /// Runs a cell. Success, error, timeout and unknown are values; an error means that the code
    /// was certainly not started. Must not be dropped while it runs: ask [`Sandbox::interrupt`]
    /// and await the value.
    async fn execute(&self, cell: &Cell, sink: &OutputSink) -> Result<Execution, SandboxError>;

    /// Writes a file whole or not at all, `max_bytes` at most, if the condition holds when it is
    /// put in place.
    async fn write_file(
        &self,
        path: &FilePath,
        content: ByteStream,
        max_bytes: u64,
        condition: &Condition,
    ) -> Result<FileEntry, SandboxError>;

    /// Opens a part of a file for reading.
    async fn read_file(
        &self,
        path: &FilePath,
        part: Part,
    ) -> Result<(FileEntry, ByteStream), SandboxError>;

    /// All files, sorted by path.
    async fn list_files(&self) -> Result<Vec<FileEntry>, SandboxError>;

    /// Removes a file, if the condition holds.
    async fn delete_file(&self, path: &FilePath, condition: &Condition)
    -> Result<(), SandboxError>;

    /// Stops the running cell, its state kept where that is possible. Does nothing when none runs.
    async fn interrupt(&self);

    /// Moves the provider's own deadline, counted from now, where it has one.
    async fn extend(&self, lifetime: Duration) -> Result<(), SandboxError>;

    /// When it ends whatever happens, where that is so.
    fn ends_at(&self) -> Option<OffsetDateTime> {
        None
    }

    /// True once it is known to be gone, with its variables and its files.
    fn is_lost(&self) -> bool {
        false
    }

    /// Ends it, busy or not, with all its processes. Ending twice is no fault.
    async fn terminate(&self);
}

/// Makes sandboxes of one kind.
#[async_trait]
pub trait SandboxProvider: Send + Sync {
    /// The kind of provider.
    fn kind(&self) -> &'static str;

    /// What its sandboxes can do.
    fn capabilities(&self) -> Capabilities;

    /// The limits of a session that asks for these.
    fn limits(&self, request: &LimitsRequest) -> Result<Limits, SandboxError>;

    /// The longest that a sandbox can live, where there is such a bound.
    fn longest(&self) -> Option<Duration> {
        None
    }

    /// Whether packages must be installed before there can be a sandbox with them.
    async fn installs(&self, packages: &PackageSet) -> bool;

    /// Installs packages for sandboxes to come. It goes on when this is dropped where others wait for
    /// the same.
    async fn install(&self, packages: &PackageSet, progress: &Progress)
    -> Result<(), SandboxError>;

    /// Makes a sandbox that is ready for its first cell.
    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError>;

    /// Finds a sandbox again, fit for its next cell, or None when it is gone. What was lost with the
    /// time between is said by that cell.
    async fn attach(
        &self,
        record: &SandboxRecord,
    ) -> Result<Option<Arc<dyn Sandbox>>, SandboxError>;

    /// The sandboxes that this deployment has made and that are still there, to end those that
    /// nobody owns.
    async fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError>;

    /// Ends a sandbox that nobody owns. One that is gone is no fault.
    async fn end(&self, record: &SandboxRecord) -> Result<(), SandboxError>;

    /// Whether its sandboxes outlive this process, and can be attached by the next one.
    fn outlives(&self) -> bool {
        false
    }

    /// Whether a sandbox can be made, and what it would be like.
    async fn check(&self) -> Result<ProviderReport, SandboxError>;

    /// What its sandboxes turned out to be like, where only a sandbox can tell.
    fn seen(&self) -> Option<ProviderReport> {
        None
    }

    /// Begins what the provider does by itself, once the service serves.
    fn start(&self) {}

    /// The sandboxes that are kept ready, a line for each set of packages; none unless it is a pool.
    fn pool(&self) -> Vec<Primed> {
        Vec::new()
    }

    /// Ends what the provider itself keeps running.
    async fn close(&self);
}

/// How often a cell that should stop is told so: one told before it has begun does not hear it.
const INTERRUPT_EVERY: Duration = Duration::from_millis(250);

/// Runs a cell to its end. Once cancelled the cell is interrupted, and its value still awaited: a
/// cell is never dropped.
pub async fn execute_until(
    sandbox: &dyn Sandbox,
    cell: &Cell,
    sink: &OutputSink,
    cancel: &CancellationToken,
) -> Result<Execution, SandboxError> {
    let mut running = std::pin::pin!(sandbox.execute(cell, sink));
    tokio::select! {
        biased;
        execution = &mut running => return execution,
        () = cancel.cancelled() => {}
    }
    loop {
        sandbox.interrupt().await;
        if let Ok(execution) = tokio::time::timeout(INTERRUPT_EVERY, &mut running).await {
            return execution;
        }
    }
}

/// What a sandbox is made from.
#[derive(Clone)]
pub struct SandboxSpec {
    /// The session that it is for.
    pub session_id: SessionId,
    /// What it may use.
    pub limits: Limits,
    /// Environment of all its cells.
    pub env: BTreeMap<String, String>,
    /// Packages that must be there.
    pub packages: PackageSet,
    /// How long it will be needed at most.
    pub lifetime: Duration,
    /// Take the time now that a first cell would take longer than later ones.
    pub primed: bool,
}

/// What is being done for a sandbox that is not there yet, for those who wait for it.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Option<&'static str>>>);

impl Progress {
    /// Says what is being done now.
    pub fn say(&self, what: &'static str) {
        *self.0.lock().expect("no panic while it is held") = Some(what);
    }

    /// What was said last.
    #[must_use]
    pub fn now(&self) -> Option<&'static str> {
        *self.0.lock().expect("no panic while it is held")
    }
}

/// How a provider is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderReport {
    /// How its sandboxes are kept apart, where it says so.
    pub isolation: Option<Isolation>,
    /// The version of Python in its sandboxes.
    pub python: Option<String>,
    /// Packages that can be imported, with their versions.
    pub packages: BTreeMap<String, String>,
}
