//! One sandbox at E2B, as a session has it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Notify, OnceCell};
use tokio::time::{Instant, sleep, timeout};

use super::access::Door;
use super::collect::Collector;
use super::control::Control;
use super::ending::{After, End, tell};
use super::envd::{self, Envd};
use super::error::E2bError;
use super::kernel::{Env, Kernel, MUTE_AT_MOST, Run};
use super::prelude::Here;
use super::process::end_all;
use crate::domain::coded::chain;
use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Execution, Language, milliseconds};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::session::SandboxRecord;
use crate::sandbox::listing::Listing;
use crate::sandbox::outcome::{tell_ended, tell_gone, tell_interrupt};
use crate::sandbox::{ByteStream, Sandbox, SandboxError, SandboxSpec};

/// A sandbox outlives each cell by so much at least.
const MARGIN: Duration = Duration::from_secs(60);
/// How soon putting off its end is tried again where that failed.
const PUT_OFF_AGAIN: Duration = Duration::from_secs(10);
/// How long a kernel may take to be made fit; the next cell goes on from there.
const FIT_LIMIT: Duration = Duration::from_secs(25);
/// For the look at the files around a cell.
const LISTING_LIMIT: Duration = Duration::from_secs(15);
const LISTED_DEPTH: u32 = 64;
/// Kernels in a row that could not be made fit: then the sandbox is of no use any more.
const BROKEN_AFTER: u32 = 2;
/// However it was that the kernel could not be made fit.
const USELESS_AFTER: u32 = 6;
const BROKEN: &str = "its code interpreter does not work (it broke off twice without a word): is its template sound? The session is lost";

pub(super) struct E2bSandbox {
    pub(super) control: Arc<Control>,
    pub(super) sandbox_id: String,
    pub(super) here: Here,
    output_cap: usize,
    /// The way to it, found again when E2B can be reached.
    door: OnceCell<Arc<Door>>,
    kernel: Mutex<Kernel>,
    kernel_id: StdMutex<String>,
    env: StdMutex<Env>,
    /// The files as they were when the last cell ended; None when they were never looked at.
    listing: StdMutex<Option<Listing>>,
    /// Held while a file is put in place or removed.
    pub(super) changing: Mutex<()>,
    ends_at: StdMutex<Instant>,
    interrupt: Notify,
    running: AtomicBool,
    is_over: AtomicBool,
    is_lost: AtomicBool,
    unfit: AtomicU32,
    /// An earlier start of the service may have left commands running in it.
    may_run_commands: AtomicBool,
}

/// What a record holds besides the sandbox's id.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Detail {
    pub(super) kernel_id: String,
    pub(super) here: Here,
    /// Bytes of each stream that are kept of a cell.
    pub(super) output_bytes: Option<u64>,
}

/// The parts of a sandbox.
pub(super) struct Parts {
    pub(super) control: Arc<Control>,
    pub(super) sandbox_id: String,
    /// None when it is still to be found again.
    pub(super) door: Option<Arc<Door>>,
    pub(super) kernel: Kernel,
    pub(super) here: Here,
    pub(super) env: Env,
    pub(super) output_cap: usize,
    /// When it was asked for, or its end put off: its time counts from then.
    pub(super) asked_at: Instant,
    /// It is new, so nothing lies in it yet.
    pub(super) is_new: bool,
}

impl E2bSandbox {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let sandbox = Arc::new(Self {
            ends_at: StdMutex::new(parts.asked_at + parts.control.access.entry.ttl),
            control: parts.control,
            sandbox_id: parts.sandbox_id,
            here: parts.here,
            output_cap: parts.output_cap,
            door: OnceCell::new_with(parts.door),
            kernel_id: StdMutex::new(parts.kernel.id.clone()),
            kernel: Mutex::new(parts.kernel),
            env: StdMutex::new(parts.env),
            listing: StdMutex::new(parts.is_new.then(Listing::default)),
            changing: Mutex::new(()),
            interrupt: Notify::new(),
            running: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            unfit: AtomicU32::new(0),
            may_run_commands: AtomicBool::new(!parts.is_new),
        });
        keep_alive(&sandbox);
        sandbox
    }

    /// The way to it. Found anew once E2B can be reached, where it could not be at the start.
    pub(super) async fn door(&self) -> Result<Arc<Door>, SandboxError> {
        if self.is_over() || self.is_lost.load(Ordering::SeqCst) {
            return Err(SandboxError::Lost);
        }
        let connecting = || async { self.control.connect(&self.sandbox_id).await.map(Arc::new) };
        let door = self.door.get_or_try_init(connecting).await;
        door.cloned().map_err(|error| self.noticed(error))
    }

    /// An error of E2B as an error of the sandbox. That it is gone is remembered.
    pub(super) fn noticed(&self, error: E2bError) -> SandboxError {
        if matches!(error, E2bError::Gone) {
            self.lose();
        }
        error.into()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(super) fn output_cap(&self) -> usize {
        self.output_cap
    }

    fn lose(&self) {
        if !self.is_lost.swap(true, Ordering::SeqCst) && !self.is_over() {
            tracing::warn!(sandbox.id = self.sandbox_id, "a sandbox at E2B is gone");
        }
    }

    pub(super) fn envd<'a>(&'a self, door: &'a Door) -> Envd<'a> {
        Envd { door, user: &self.here.user }
    }

    fn env(&self) -> Env {
        self.env.lock().expect("no panic while the environment is held").clone()
    }

    pub(super) fn listing(&self) -> MutexGuard<'_, Option<Listing>> {
        self.listing.lock().expect("no panic while the listing is held")
    }

    pub(super) async fn list(&self, door: &Door) -> Result<Listing, E2bError> {
        let files_dir = &self.here.files_dir;
        let entries = self.envd(door).list(files_dir, LISTED_DEPTH).await?;
        Ok(envd::listing(&entries, files_dir))
    }

    /// Makes sure that the sandbox outlives a cell.
    async fn outlast(&self, cell: Duration) -> Result<(), SandboxError> {
        let ends_at = *self.ends_at.lock().expect("no panic while it is held");
        if ends_at >= Instant::now() + cell + MARGIN {
            return Ok(());
        }
        match self.put_off(cell + 2 * MARGIN).await {
            Ok(()) => Ok(()),
            // the plan's longest life may end before, and that is no reason not to begin
            Err(E2bError::Refused(refusal)) if refusal.status == 400 => Ok(()),
            Err(E2bError::Gone) => Err(self.noticed(E2bError::Gone)),
            Err(_) if ends_at > Instant::now() + cell => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn put_off(&self, least: Duration) -> Result<(), E2bError> {
        let ends_at = *self.ends_at.lock().expect("no panic while it is held");
        let left = ends_at.saturating_duration_since(Instant::now());
        let ttl = self.control.access.entry.ttl.max(least).max(left); // never shortened
        self.control.set_timeout(&self.sandbox_id, ttl).await?;
        *self.ends_at.lock().expect("no panic while it is held") = Instant::now() + ttl;
        Ok(())
    }

    async fn run_python(
        &self,
        door: &Door,
        kernel: &mut Kernel,
        cell: &Cell,
        sink: &OutputSink,
    ) -> Result<Execution, SandboxError> {
        let mut execution = Execution::of(cell);
        let mut again = true;
        let (collector, end, started) = loop {
            self.prepare(door, kernel, cell).await?;
            if self.interrupt.notified().now_or_never().is_some() {
                tell_interrupt(&mut execution); // before anything of it ran
                kernel.take_back(door).await;
                return Ok(execution);
            }
            let mut collector = Collector::new(self.output_cap);
            let started = Instant::now();
            let run =
                Run { code: &cell.code, limit: cell.timeout, interrupt: &self.interrupt, sink };
            match kernel.run(door, &run, &mut collector).await {
                // its context is gone, so nothing has run: a probe finds that, and makes another one
                End::NotStarted(error) if error.has_status(&[404]) && again => {
                    again = false;
                    kernel.suspect = Some(Instant::now());
                }
                End::NotStarted(error) => {
                    kernel.take_back(door).await;
                    return Err(self.noticed(error));
                }
                end => break (collector, end, started),
            }
        };
        execution.duration_ms = Some(milliseconds(started.elapsed()));
        let mute = collector.lines == 0 && matches!(end, End::Closed | End::Cut);
        kernel.mute_runs = if mute { kernel.mute_runs + 1 } else { 0 };
        let needs_mark = self.control.access.entry.require_end_event;
        let after = tell(&mut execution, collector, &end, needs_mark, cell.timeout);
        self.tidy(door, kernel, after, &mut execution).await;
        Ok(execution)
    }

    /// What is left to do after a run, so that the next one finds a kernel that listens.
    async fn tidy(
        &self,
        door: &Door,
        kernel: &mut Kernel,
        after: After,
        execution: &mut Execution,
    ) {
        match after {
            After::Nothing => {
                kernel.take_back(door).await;
                return;
            }
            _ if self.is_over() => return tell_ended(execution),
            After::IsNew => return,
            After::Probe => {}
            After::Look => {
                execution.duration_ms = None;
                if let Err(E2bError::Gone) = self.envd(door).health().await {
                    self.lose();
                    return tell_gone(execution, "it is gone, and the session is lost");
                }
            }
        }
        kernel.suspect = Some(Instant::now());
        match self.fit(kernel.make_fit(door, &self.env())).await {
            Ok(()) => {}
            Err(SandboxError::Lost) => {
                tell_gone(execution, "it is gone, and the session is lost");
            }
            Err(_) if kernel.mute_runs >= MUTE_AT_MOST => {
                self.lose();
                tell_gone(execution, BROKEN);
            }
            // the next cell tries again
            Err(error) => {
                let cause = chain(&error);
                tracing::warn!(error = cause, sandbox.id = self.sandbox_id, "a kernel is not fit");
            }
        }
    }

    async fn prepare(
        &self,
        door: &Door,
        kernel: &mut Kernel,
        cell: &Cell,
    ) -> Result<(), SandboxError> {
        self.fit(kernel.prepare(door, &self.env(), cell)).await?;
        self.kernel_id.lock().expect("no panic while it is held").clone_from(&kernel.id);
        Ok(())
    }

    /// Awaits that a kernel is fit. One that never is makes the sandbox a broken one.
    async fn fit(
        &self,
        making: impl Future<Output = Result<(), E2bError>>,
    ) -> Result<(), SandboxError> {
        let fit = timeout(FIT_LIMIT, making).await.unwrap_or(Err(E2bError::TooSlow));
        let Err(error) = fit else {
            self.unfit.store(0, Ordering::SeqCst);
            return Ok(());
        };
        let unfit = self.unfit.fetch_add(1, Ordering::SeqCst) + 1;
        let is_broken = matches!(error, E2bError::NoInterpreter | E2bError::TooSlow);
        if is_broken && unfit >= BROKEN_AFTER || unfit >= USELESS_AFTER {
            self.lose();
            return Err(SandboxError::Lost);
        }
        Err(self.noticed(error))
    }

    /// What the cell did to the files, told in its execution.
    async fn tell_files(&self, door: &Door, execution: &mut Execution) {
        if self.is_lost.load(Ordering::SeqCst) || self.is_over() {
            return;
        }
        let before = self.listing().replace(Listing::default());
        let listed = timeout(LISTING_LIMIT, self.list(door)).await;
        let (before, mut now) = match (before, listed.unwrap_or(Err(E2bError::TooSlow))) {
            (Some(before), Ok(now)) => (before, now),
            // what is not known is not told
            (before, _) => {
                let put_in = self.listing().take().unwrap_or_default();
                *self.listing() = before.map(|before| before.with(put_in));
                execution.truncated = true;
                return;
            }
        };
        let (mut changes, whole) = now.changes_since(&before);
        let mut current = self.listing();
        // what callers have put in meanwhile is no change of the cell
        let put_in = current.take().unwrap_or_default();
        changes.retain(|change| !now.has_of(&put_in, &change.path));
        now = now.with(put_in);
        *current = Some(now);
        execution.files = changes;
        execution.truncated |= !whole;
    }

    async fn execute_in(
        &self,
        kernel: &mut Kernel,
        cell: &Cell,
        sink: &OutputSink,
    ) -> Result<Execution, SandboxError> {
        let door = self.door().await?;
        self.outlast(cell.timeout).await?;
        if self.may_run_commands.swap(false, Ordering::SeqCst) {
            end_all(&self.envd(&door), &self.sandbox_id).await;
        }
        self.know_files(&door).await;
        let mut execution = match cell.language {
            Language::Python => self.run_python(&door, kernel, cell, sink).await?,
            Language::Shell => {
                let interrupt = &self.interrupt;
                let run = Run { code: &cell.code, limit: cell.timeout, interrupt, sink };
                self.run_shell(&door, cell, &run, &self.env()).await?
            }
        };
        self.tell_files(&door, &mut execution).await;
        Ok(execution)
    }

    /// The files as they are before a cell, where they were never looked at.
    async fn know_files(&self, door: &Door) {
        if self.listing().is_none()
            && let Ok(Ok(listing)) = timeout(LISTING_LIMIT, self.list(door)).await
        {
            self.listing().get_or_insert(listing);
        }
    }
}

#[async_trait]
impl Sandbox for E2bSandbox {
    fn record(&self) -> SandboxRecord {
        let kernel_id = self.kernel_id.lock().expect("no panic while it is held").clone();
        let output_bytes = Some(self.output_cap as u64);
        let detail = Detail { kernel_id, here: self.here.clone(), output_bytes };
        SandboxRecord {
            sandbox_id: self.sandbox_id.clone(),
            detail: serde_json::to_value(detail).unwrap_or_default(),
        }
    }

    fn files_dir(&self) -> String {
        self.here.files_dir.clone()
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let door = self.door().await?;
        let mut kernel = self.kernel.lock().await;
        self.env.lock().expect("no panic while the environment is held").clone_from(&spec.env);
        let set_up = kernel.set_up(&door, &spec.env).await;
        set_up.map(drop).map_err(|error| self.noticed(error))
    }

    async fn execute(&self, cell: &Cell, sink: &OutputSink) -> Result<Execution, SandboxError> {
        let mut kernel = self.kernel.lock().await;
        let _ = self.interrupt.notified().now_or_never(); // one meant for an earlier cell
        self.running.store(true, Ordering::SeqCst);
        let executed = self.execute_in(&mut kernel, cell, sink).await;
        self.running.store(false, Ordering::SeqCst);
        let mut execution = executed?;
        if cell.language == Language::Python {
            execution.state_lost |= kernel.take_state_lost();
        }
        execution.text = execution.display_text();
        Ok(execution)
    }

    async fn write_file(
        &self,
        path: &FilePath,
        content: ByteStream,
        max_bytes: u64,
        condition: &Condition,
    ) -> Result<FileEntry, SandboxError> {
        self.put(path, content, max_bytes, condition).await
    }

    async fn read_file(
        &self,
        path: &FilePath,
        part: Part,
    ) -> Result<(FileEntry, ByteStream), SandboxError> {
        self.get(path, part).await
    }

    async fn list_files(&self) -> Result<Vec<FileEntry>, SandboxError> {
        let door = self.door().await?;
        let listing = self.list(&door).await.map_err(|error| self.noticed(error))?;
        Ok(listing.entries())
    }

    async fn delete_file(
        &self,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(), SandboxError> {
        self.remove(path, condition).await
    }

    async fn interrupt(&self) {
        if self.running.load(Ordering::SeqCst) {
            self.interrupt.notify_one();
        }
    }

    async fn extend(&self, _: Duration) -> Result<(), SandboxError> {
        Ok(()) // its end is put off for as long as the session lives
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    async fn terminate(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        // also what seems to be gone: who said so may have been wrong, or its own code
        if let Err(error) = self.control.delete(&self.sandbox_id).await {
            let cause = chain(&error);
            tracing::warn!(
                error = cause,
                sandbox.id = self.sandbox_id,
                "a sandbox at E2B was not ended: it ends by itself when its time is over"
            );
        }
    }
}

/// Puts its end off for as long as somebody holds it: when this process dies, it ends by itself.
fn keep_alive(sandbox: &Arc<E2bSandbox>) {
    let held = Arc::downgrade(sandbox);
    let half = sandbox.control.access.entry.ttl / 2;
    let ends_at = *sandbox.ends_at.lock().expect("no panic while it is held");
    let mut pause = ends_at.saturating_duration_since(Instant::now()) / 2;
    tokio::spawn(async move {
        loop {
            sleep(pause).await;
            let Some(sandbox) = held.upgrade() else { return };
            if sandbox.is_over() || sandbox.is_lost() {
                return;
            }
            pause = match sandbox.put_off(Duration::ZERO).await {
                Ok(()) => half,
                Err(E2bError::Gone) => return sandbox.lose(),
                Err(error) => {
                    let (id, cause) = (&sandbox.sandbox_id, chain(&error));
                    tracing::warn!(
                        error = cause,
                        sandbox.id = id,
                        "a sandbox's end was not put off"
                    );
                    // a refusal will be the same in a moment
                    if error.is_passing() { PUT_OFF_AGAIN.min(half) } else { half / 2 }
                }
            };
        }
    });
}
