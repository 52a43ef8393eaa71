//! A running server of ours: its process, its client, and the watch over what it takes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};

use super::client::{self, Client};
use super::error::{CallError, PydanticError};
use super::folder::Folder;
use super::process::{Plan, Process};
use crate::domain::limits::Limits;
use crate::domain::package::PackageSet;
use crate::sandbox::{PackagesError, SandboxError};

const HANDSHAKE_LIMIT: Duration = Duration::from_secs(20);
/// While a cell runs, and while none does.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const IDLE_EVERY: Duration = Duration::from_secs(1);
/// Files are looked at that much less often than memory.
const LOOKS_A_FOLDER: u32 = 5;
/// Deno has a dozen, whatever its code does.
const MAX_THREADS: u64 = 256;
/// How long the end of a process is waited for whose pipe has closed.
const END_LIMIT: Duration = Duration::from_secs(2);

/// A running server. It ends when dropped.
pub(super) struct Instance {
    process: Arc<Process>,
    pub(super) client: Client,
    exceeded: Arc<OnceLock<Exceeded>>,
    is_busy: Arc<AtomicBool>,
    /// What it said of itself.
    pub(super) about: About,
}

/// A limit that it passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exceeded {
    Memory,
    Files,
    Threads,
}

/// What a server of ours says of itself.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct About {
    pub(super) cold: bool,
}

impl Instance {
    /// Starts one, and waits until its Python is ready: `limit` at most.
    pub(super) async fn start(
        plan: Plan,
        files: PathBuf,
        limits: &Limits,
        limit: Duration,
    ) -> Result<Self, PydanticError> {
        let until = Instant::now() + limit;
        let (client, process) = Client::start(plan, limit.min(HANDSHAKE_LIMIT)).await?;
        let process = Arc::new(process);
        let left = until.saturating_duration_since(Instant::now());
        let about = client.call("list_packages", Map::new(), left).await?;
        let about = serde_json::from_value(about.structured_content.unwrap_or_default());
        let about = about.map_err(|_| CallError::BadAnswer("what our server says of itself"))?;
        let exceeded = Arc::new(OnceLock::new());
        let is_busy = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            process: Arc::downgrade(&process),
            files,
            limits: *limits,
            exceeded: Arc::clone(&exceeded),
            is_busy: Arc::clone(&is_busy),
        };
        tokio::spawn(watch.look());
        Ok(Self { process, client, exceeded, is_busy, about })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.process.has_ended() || self.client.is_closed()
    }

    /// Whether a cell runs: it is looked at more often then.
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::SeqCst);
    }

    pub(super) fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded.get().copied()
    }

    pub(super) fn landlock_abi(&self) -> u32 {
        self.process.words().landlock_abi()
    }

    /// Ends it, and waits until it is gone.
    pub(super) async fn end(&self) {
        self.process.end().await;
    }

    /// Waits for the end of a process whose pipe has closed. False when it goes on.
    pub(super) async fn ends(&self) -> bool {
        self.process.ends_within(END_LIMIT).await
    }

    /// Loads packages of the store, before any code has run.
    pub(super) async fn load(
        &self,
        packages: &PackageSet,
        limit: Duration,
    ) -> Result<(), SandboxError> {
        if packages.is_empty() {
            return Ok(());
        }
        let names: Vec<Value> = packages.iter().map(|package| package.name().into()).collect();
        let arguments = Map::from_iter([("packages".to_owned(), Value::from(names))]);
        let loaded = self.client.call("install_packages", arguments, limit).await?;
        if loaded.is_error == Some(true) {
            let why = client::text(&loaded).unwrap_or_default();
            return Err(PackagesError::Failed(why.chars().take(500).collect()).into());
        }
        Ok(())
    }
}

/// Looks at what a process takes for as long as it is there.
struct Watch {
    process: std::sync::Weak<Process>,
    files: PathBuf,
    limits: Limits,
    exceeded: Arc<OnceLock<Exceeded>>,
    is_busy: Arc<AtomicBool>,
}

impl Watch {
    async fn look(self) {
        let mut looks = 0_u32;
        loop {
            let is_busy = self.is_busy.load(Ordering::SeqCst);
            sleep(if is_busy { LOOK_EVERY } else { IDLE_EVERY }).await;
            let Some(process) = self.process.upgrade().filter(|process| !process.has_ended())
            else {
                return;
            };
            looks = looks.wrapping_add(1);
            let memory_bytes = process.memory_bytes().await;
            // between cells callers fill the folder, within bounds of their own
            let is_due = is_busy && looks.is_multiple_of(LOOKS_A_FOLDER);
            let exceeded = if self.limits.memory_bytes.is_some_and(|most| memory_bytes > most) {
                Some(Exceeded::Memory)
            } else if process.threads() > MAX_THREADS {
                Some(Exceeded::Threads)
            } else if is_due && self.has_full_folder(&process).await {
                Some(Exceeded::Files)
            } else {
                None
            };
            if let Some(exceeded) = exceeded {
                let _ = self.exceeded.set(exceeded);
                process.kill();
                return;
            }
        }
    }

    async fn has_full_folder(&self, process: &Process) -> bool {
        let Some(most) = self.limits.disk_bytes else { return false };
        let unnamed = process.unnamed_bytes().await;
        let files = self.files.clone();
        let look = tokio::task::spawn_blocking(move || Folder::is_over(&files, most, unnamed));
        look.await.unwrap_or(true)
    }
}
