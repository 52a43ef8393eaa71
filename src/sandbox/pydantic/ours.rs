//! A sandbox of ours: a server, and another one where that has ended, over one folder of files.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use rmcp::model::CallToolResult;
use serde_json::{Map, Value};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep_until};

use super::answer::{Answer, arguments};
use super::client;
use super::error::CallError;
use super::folder::Folder;
use super::instance::{Exceeded, Instance};
use super::making::{GRACE, Making};
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

/// Where code sees its files.
pub(super) const FILES_DIR: &str = "/files";
pub(super) const NO_SHELL: &str = "it runs Python in WebAssembly, where there is no shell";
/// An answer takes its time besides what the cell takes: large outputs, a busy host.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const INTERRUPT_LIMIT: Duration = Duration::from_secs(1);
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
    is_over: AtomicBool,
}

/// How a hand-over ended.
enum End {
    Said(Box<CallToolResult>),
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
            is_over: AtomicBool::new(false),
        };
        let instance = sandbox.start().await?;
        *sandbox.instance.lock().await = Some(instance);
        Ok(Arc::new(sandbox))
    }

    async fn start(&self) -> Result<Arc<Instance>, SandboxError> {
        let instance = Arc::new(self.making.instance(&self.folder, &self.limits).await?);
        instance.load(&self.packages, self.making.create_limit).await?;
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
        self.is_over.load(Ordering::SeqCst)
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
        let calling = instance.client.run(arguments, cell.timeout + GRACE + ANSWER_LIMIT);
        tokio::select! {
            called = calling => match called {
                Ok(said) => End::Said(Box::new(said)),
                Err(error) => End::Failed(error),
            },
            () = self.stop(instance) => End::DidNotHear,
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

    /// Tells the execution what came of the hand-over. A server that is not known to listen is ended.
    async fn tell(
        &self,
        instance: &Instance,
        end: End,
        (cell, sink): (&Cell, &OutputSink),
        execution: &mut Execution,
    ) {
        let (mut heard, kept) = instance.client.listener.take().unzip();
        let heard = heard.get_or_insert_with(crate::sandbox::told::Heard::nothing);
        let answer = match end {
            End::Said(said) => client::structured(*said).and_then(Answer::read).ok_or(None),
            End::Failed(error) => Err(Some(Some(error))),
            End::DidNotHear => Err(Some(None)),
        };
        let lost = match answer {
            Ok(answer) => {
                answer.tell(execution, cell, (self.output_cap(), heard, sink));
                return;
            }
            Err(lost) => lost,
        };
        if let Some(kept) = kept {
            kept.finish(execution);
        }
        match lost {
            None => unknown(execution, "the server's answer holds no result of the code"),
            Some(None) => tell_interrupt(execution),
            Some(Some(CallError::TooSlow)) => tell_timeout(execution, cell.timeout),
            Some(Some(error)) => self.tell_end(instance, &error, execution).await,
        }
        execution.state_lost = true;
        instance.end().await;
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
                failed(execution, FailureKind::Limit, "the files took more room than they may");
            }
            None if instance.ends().await => {
                let message = "the interpreter ended: its process was killed, or crashed";
                failed(execution, FailureKind::Killed, message);
            }
            None => unknown(execution, &error.to_string()),
        }
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
                    return Err(error.into());
                }
                end => break (instance, end),
            }
        };
        self.tell(&instance, end, (cell, sink), &mut execution).await;
        if execution.status == ExecutionStatus::Unknown {
            execution.duration_ms = None;
        }
        execution.state_lost |= self.state_lost.swap(false, Ordering::SeqCst);
        if self.is_over() {
            tell_ended(&mut execution);
            return Ok(execution);
        }
        self.seen.tell(Arc::clone(&self.folder), &mut execution).await;
        if instance.has_ended() {
            *slot = None; // told already
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
        self.is_over.store(true, Ordering::SeqCst);
        let current = self.current().take();
        if let Some(instance) = current {
            instance.end().await;
        }
        self.folder.end().await;
    }
}
