//! A sandbox of ours: a server, and another one where that has ended, over one folder of files.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use serde_json::{Map, Value};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, arguments};
use super::error::CallError;
use super::folder::Folder;
use super::instance::{Exceeded, Instance};
use super::making::{GRACE, Making};
use super::{FILES_DIR, NO_SHELL};
use crate::domain::event::OutputSink;
use crate::domain::execution::{
    Cell, Execution, ExecutionStatus, FailureKind, Language, milliseconds,
};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::SessionId;
use crate::domain::limits::Limits;
use crate::domain::package::PackageSet;
use crate::domain::session::SandboxRecord;
use crate::sandbox::host::seen::Seen;
use crate::sandbox::outcome::{fail, tell_ended, tell_interrupt, tell_timeout, unknown};
use crate::sandbox::{ByteStream, Sandbox, SandboxError, SandboxSpec};

/// An answer takes its time besides what the cell takes: large outputs, a busy host.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// What the server takes before the cell's own time begins, by its own bounds: another worker, and the
/// packages that the code imports.
const READY_LIMIT: Duration = Duration::from_secs(150);
/// Whether it is still there while that goes on.
const PING_LIMIT: Duration = Duration::from_secs(2);
const PING_EVERY: Duration = Duration::from_secs(1);
const INTERRUPT_LIMIT: Duration = Duration::from_secs(1);
const FULL: &str =
    "the files took more room than they may, or are too many or too deep to be counted";
/// How often a cell is handed over whose server was certainly not reached.
const HAND_OVERS: u32 = 3;

pub(super) struct OurSandbox {
    id: SessionId,
    making: Arc<Making>,
    limits: Limits,
    packages: PackageSet,
    env: StdMutex<BTreeMap<String, String>>,
    folder: Arc<Folder>,
    /// For one cell at a time; None once it has ended and was not made anew.
    instance: Mutex<Option<Arc<Instance>>>,
    /// The same for those that do not wait for a cell.
    current: StdMutex<Option<Arc<Instance>>>,
    seen: Seen,
    interrupt: Notify,
    running: AtomicBool,
    state_lost: AtomicBool,
    over: CancellationToken,
}

/// How a hand-over ended.
enum End {
    Told(Box<Answer>),
    /// What the server said is none.
    NoResult,
    Failed(CallError),
    /// It was told to stop, and did not hear that.
    DidNotHear,
}

impl OurSandbox {
    pub(super) async fn create(
        making: Arc<Making>,
        spec: &SandboxSpec,
    ) -> Result<Arc<Self>, SandboxError> {
        let folder = Arc::new(making.folder(spec.session_id, &spec.limits).await?);
        let sandbox = Self {
            id: spec.session_id,
            making,
            limits: spec.limits,
            packages: spec.packages.clone(),
            env: StdMutex::new(spec.env.clone()),
            folder,
            instance: Mutex::new(None),
            current: StdMutex::new(None),
            seen: Seen::default(),
            interrupt: Notify::new(),
            running: AtomicBool::new(false),
            state_lost: AtomicBool::new(false),
            over: CancellationToken::new(),
        };
        let instance = sandbox.start().await?;
        *sandbox.instance.lock().await = Some(instance);
        Ok(Arc::new(sandbox))
    }

    /// A server with its Python and packages ready. It ends with the sandbox.
    async fn start(&self) -> Result<Arc<Instance>, SandboxError> {
        let starting = async {
            let instance = Arc::new(self.making.instance(&self.folder, &self.limits).await?);
            instance.load(&self.packages, self.making.create_limit).await?;
            Ok(instance)
        };
        let started = self.over.run_until_cancelled(starting).await;
        let instance = started.unwrap_or(Err(SandboxError::Lost))?;
        *self.current() = Some(Arc::clone(&instance));
        if self.is_over() {
            instance.end().await;
            return Err(SandboxError::Lost);
        }
        Ok(instance)
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Arc<Instance>>> {
        self.current.lock().expect("no panic while the instance is held")
    }

    fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    fn output_cap(&self) -> usize {
        usize::try_from(self.making.output_bytes(&self.limits)).unwrap_or(usize::MAX)
    }

    /// The instance, or another one where it has ended: then its variables are gone.
    async fn fit(&self, slot: &mut Option<Arc<Instance>>) -> Result<Arc<Instance>, SandboxError> {
        if self.is_over() {
            return Err(SandboxError::Lost);
        }
        if let Some(instance) = slot.as_ref().filter(|instance| !instance.has_ended()) {
            return Ok(Arc::clone(instance));
        }
        if let Some(ended) = slot.take() {
            ended.end().await;
            self.state_lost.store(true, Ordering::SeqCst);
        }
        let instance = self.start().await?;
        *slot = Some(Arc::clone(&instance));
        Ok(instance)
    }

    async fn hand_over(&self, instance: &Instance, cell: &Cell, sink: &OutputSink) -> End {
        let env = self.env.lock().expect("no panic while the environment is held").clone();
        let arguments =
            arguments(cell, &serde_json::to_value(env).unwrap_or_default(), self.output_cap());
        instance.client.listener.listen(sink, self.output_cap());
        let limit = cell.timeout + READY_LIMIT + GRACE + ANSWER_LIMIT;
        let calling = instance.client.run(arguments, limit);
        tokio::select! {
            called = calling => match called {
                Ok(said) => match said.structured_content.and_then(Answer::read) {
                    Some(answer) => End::Told(Box::new(answer)),
                    None => End::NoResult,
                },
                Err(error) => End::Failed(error),
            },
            () = self.stop(instance) => End::DidNotHear,
            () = hangs(instance, cell.timeout) => End::Failed(CallError::TooSlow),
        }
    }

    /// Tells the cell to stop whenever that is asked for. Ends when it should have heard.
    async fn stop(&self, instance: &Instance) {
        self.interrupt.notified().await;
        let until = Instant::now() + GRACE + ANSWER_LIMIT;
        let telling = async {
            loop {
                let _ = instance.client.call("interrupt", Map::new(), INTERRUPT_LIMIT).await;
                self.interrupt.notified().await;
            }
        };
        tokio::select! {
            () = telling => {}
            () = sleep_until(until) => {}
        }
    }

    /// Tells the execution what came of the hand-over. A server that is not known to listen is ended
    /// then: True.
    async fn tell(
        &self,
        instance: &Instance,
        end: End,
        (cell, sink): (&Cell, &OutputSink),
        execution: &mut Execution,
    ) -> bool {
        let (mut heard, kept) = instance.client.listener.take();
        match end {
            End::Told(answer) => {
                answer.tell(execution, cell, (self.output_cap(), &mut heard, sink));
                return false;
            }
            End::NoResult => unknown(execution, "the server's answer holds no result of the code"),
            End::DidNotHear => tell_interrupt(execution),
            End::Failed(CallError::TooSlow) => tell_timeout(execution, cell.timeout),
            End::Failed(error) => self.tell_end(instance, &error, execution).await,
        }
        kept.finish(execution);
        execution.state_lost = true;
        instance.end().await;
        true
    }

    /// Its process ended while the code ran.
    async fn tell_end(&self, instance: &Instance, error: &CallError, execution: &mut Execution) {
        let failed = |execution: &mut Execution, kind, message: &str| {
            fail(execution, ExecutionStatus::Error, kind, message.to_owned());
        };
        match instance.exceeded() {
            Some(Exceeded::Memory) => {
                failed(execution, FailureKind::Oom, "the sandbox used more memory than it may");
            }
            Some(Exceeded::Files) => {
                failed(execution, FailureKind::Limit, FULL);
            }
            Some(Exceeded::Threads) => {
                failed(execution, FailureKind::Limit, "the interpreter has too many threads");
            }
            None if instance.ends().await => {
                let message = "the interpreter ended: its process was killed, or crashed";
                failed(execution, FailureKind::Killed, message);
            }
            None => unknown(execution, &error.to_string()),
        }
    }
}

/// Ends when the server does not answer at all, though the cell's time is over.
async fn hangs(instance: &Instance, time: Duration) {
    sleep(time + GRACE + ANSWER_LIMIT).await;
    while instance.client.answers(PING_LIMIT).await {
        sleep(PING_EVERY).await;
    }
}

#[async_trait]
impl Sandbox for OurSandbox {
    fn record(&self) -> SandboxRecord {
        SandboxRecord { sandbox_id: self.id.to_string(), detail: Value::Null }
    }

    fn files_dir(&self) -> String {
        FILES_DIR.to_owned()
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let slot = self.instance.lock().await;
        if self.is_over() || slot.as_ref().is_none_or(|instance| instance.has_ended()) {
            return Err(SandboxError::Lost);
        }
        self.env.lock().expect("no panic while the environment is held").clone_from(&spec.env);
        Ok(())
    }

    async fn execute(&self, cell: &Cell, sink: &OutputSink) -> Result<Execution, SandboxError> {
        if cell.language == Language::Shell {
            return Err(SandboxError::Unsupported(NO_SHELL));
        }
        let mut slot = self.instance.lock().await;
        let _ = self.interrupt.notified().now_or_never(); // one meant for an earlier cell
        let mut execution = Execution::of(cell);
        let mut hand_overs = 1;
        let (instance, end) = loop {
            let instance = self.fit(&mut slot).await?;
            self.running.store(true, Ordering::SeqCst);
            instance.set_busy(true);
            let started = Instant::now();
            let end = self.hand_over(&instance, cell, sink).await;
            instance.set_busy(false);
            self.running.store(false, Ordering::SeqCst);
            execution.duration_ms = Some(milliseconds(started.elapsed()));
            match end {
                End::Failed(CallError::NotSent) if hand_overs < HAND_OVERS => {
                    hand_overs += 1;
                    instance.end().await;
                }
                // nothing was run
                End::Failed(error @ (CallError::NotSent | CallError::Refused(_))) => {
                    drop(instance.client.listener.take());
                    return Err(error.into());
                }
                end => break (instance, end),
            }
        };
        if self.tell(&instance, end, (cell, sink), &mut execution).await {
            *slot = None; // that is told
        }
        if execution.status == ExecutionStatus::Unknown {
            execution.duration_ms = None;
        }
        execution.state_lost |= self.state_lost.swap(false, Ordering::SeqCst);
        if self.is_over() {
            tell_ended(&mut execution);
            return Ok(execution);
        }
        self.seen.tell(Arc::clone(&self.folder), &mut execution).await;
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
        let (entry, stamp) = self.folder.put(path, content, max_bytes, condition).await?;
        self.seen.note_put(path, stamp);
        Ok(entry)
    }

    async fn read_file(
        &self,
        path: &FilePath,
        part: Part,
    ) -> Result<(FileEntry, ByteStream), SandboxError> {
        self.folder.get(path, part).await
    }

    async fn list_files(&self) -> Result<Vec<FileEntry>, SandboxError> {
        self.folder.list().await
    }

    async fn delete_file(
        &self,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(), SandboxError> {
        self.folder.remove(path, condition).await?;
        self.seen.note_removed(path);
        Ok(())
    }

    async fn interrupt(&self) {
        if self.running.load(Ordering::SeqCst) {
            self.interrupt.notify_one();
        }
    }

    async fn extend(&self, _: Duration) -> Result<(), SandboxError> {
        Ok(()) // a process of this host has no deadline of its own
    }

    async fn terminate(&self) {
        self.over.cancel();
        let current = self.current().take();
        if let Some(instance) = current {
            instance.end().await;
        }
        self.folder.end().await;
    }
}
