//! A sandbox in a server of somebody else's: all of it waits for its turn.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use serde_json::{Value, json};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::answer::Answer;
use super::error::CallError;
use super::folder::Folder;
use super::link::{Here, Link, Told, read_as};
use super::ours::NO_SHELL;
use super::reach::Reach;
use crate::domain::event::OutputSink;
use crate::domain::execution::{
    Cell, Execution, ExecutionStatus, FailureKind, Language, milliseconds,
};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::SessionId;
use crate::domain::reason::Reason;
use crate::domain::session::SandboxRecord;
use crate::sandbox::listing::Listing;
use crate::sandbox::outcome::{fail, tell_ended, tell_interrupt, tell_timeout, unknown};
use crate::sandbox::told::{Found, Heard};
use crate::sandbox::{ByteStream, ProviderReport, Sandbox, SandboxError, SandboxSpec};

/// A cell that waits can be told to stop; one that computes cannot.
const STOP_LIMIT: Duration = Duration::from_secs(1);
/// An answer takes its time besides what the cell takes.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(200);
const END_LIMIT: Duration = Duration::from_secs(2);
const LIST_LIMIT: Duration = Duration::from_secs(30);

pub(super) struct ServedSandbox {
    id: SessionId,
    pub(super) reach: Arc<Reach>,
    output_cap: usize,
    env: StdMutex<BTreeMap<String, String>>,
    /// For one piece of work at a time, as the server is deaf while it runs code.
    turn: Mutex<Turn>,
    /// The same for those that do not wait.
    current: StdMutex<Option<Arc<Link>>>,
    /// What callers have put in, for a server that comes after one that has ended.
    pub(super) kept: Arc<Folder>,
    interrupt: Notify,
    running: AtomicBool,
    over: CancellationToken,
}

/// What whoever has the turn knows.
#[derive(Default)]
pub(super) struct Turn {
    link: Option<Arc<Link>>,
    /// The files as they were when the last cell ended; None when nobody looked.
    pub(super) listing: Option<Listing>,
    state_lost: bool,
    files_lost: bool,
}

impl Turn {
    fn lose(&mut self) {
        self.state_lost = true;
        self.files_lost = true;
        self.listing = None;
    }
}

/// How a hand-over ended.
enum End {
    Told(Told),
    Failed(CallError),
    /// It ran out of time, or was told to stop.
    Stopped {
        by_caller: bool,
        told: Option<Told>,
    },
    TooMuchMemory,
}

impl ServedSandbox {
    pub(super) async fn create(
        reach: Arc<Reach>,
        spec: &SandboxSpec,
        kept: Folder,
    ) -> Result<Arc<Self>, SandboxError> {
        let output_bytes = spec.limits.output_bytes.unwrap_or(1 << 20);
        let sandbox = Self {
            id: spec.session_id,
            reach,
            output_cap: usize::try_from(output_bytes).unwrap_or(usize::MAX),
            env: StdMutex::new(spec.env.clone()),
            turn: Mutex::default(),
            current: StdMutex::new(None),
            kept: Arc::new(kept),
            interrupt: Notify::new(),
            running: AtomicBool::new(false),
            over: CancellationToken::new(),
        };
        sandbox.link(&mut *sandbox.turn.lock().await).await?;
        Ok(Arc::new(sandbox))
    }

    fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    fn env(&self) -> BTreeMap<String, String> {
        self.env.lock().expect("no panic while the environment is held").clone()
    }

    /// Waits for its turn.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, Turn> {
        self.turn.lock().await
    }

    /// The connection; where the last one is of no use any more, another one with what callers have
    /// put in.
    pub(super) async fn link(&self, turn: &mut Turn) -> Result<Arc<Link>, SandboxError> {
        if self.is_over() {
            return Err(SandboxError::Lost);
        }
        if let Some(link) = turn.link.as_ref().filter(|link| link.is_fit()) {
            return Ok(Arc::clone(link));
        }
        if let Some(lost) = turn.link.take() {
            turn.lose();
            lost.end().await;
        }
        drop(self.current.lock().expect("no panic while it is held").take());
        let link = Arc::new(self.reach.link(self.id).await?);
        self.set_up(&link, turn).await?;
        *self.current.lock().expect("no panic while it is held") = Some(Arc::clone(&link));
        turn.link = Some(Arc::clone(&link));
        if self.is_over() {
            link.end().await;
            return Err(SandboxError::Lost);
        }
        Ok(link)
    }

    /// Brings our modules there, and the files that callers have put in.
    async fn set_up(&self, link: &Link, turn: &mut Turn) -> Result<(), SandboxError> {
        let Here { version, packages } = link.set_up(&self.env(), self.reach.create_limit).await?;
        let report = ProviderReport { isolation: None, python: Some(version), packages };
        *self.reach.seen.lock().expect("no panic while it is held") = Some(report);
        self.bring_kept(link).await?;
        turn.listing = self.look(link).await?;
        Ok(())
    }

    /// The files as they are.
    pub(super) async fn look(&self, link: &Link) -> Result<Option<Listing>, CallError> {
        match link.ask(json!({"do": "list"}), LIST_LIMIT).await? {
            Told::Answer(found) => Ok(read_as::<Found>(found)?.listing()),
            Told::Refused(_) | Told::Absent => Ok(None),
        }
    }

    /// Asks for something; where our modules are gone, they are brought there once more first.
    pub(super) async fn ask(
        &self,
        turn: &mut Turn,
        told: &Value,
        limit: Duration,
    ) -> Result<Told, SandboxError> {
        let link = self.link(turn).await?;
        match link.ask(told.clone(), limit).await? {
            Told::Absent => {
                turn.lose();
                self.set_up(&link, turn).await?;
                Ok(link.ask(told.clone(), limit).await?)
            }
            told => Ok(told),
        }
    }

    async fn hand_over(&self, link: &Link, cell: &Cell) -> End {
        let told = json!({
            "do": "run", "code": cell.code, "env": cell.env, "stdin": cell.stdin,
            "output_bytes": self.output_cap,
        });
        let mut running = std::pin::pin!(link.ask(told, cell.timeout + STOP_LIMIT + ANSWER_LIMIT));
        let by_caller = tokio::select! {
            ended = &mut running => return match ended {
                Ok(told) => End::Told(told),
                Err(error) => End::Failed(error),
            },
            () = sleep(cell.timeout) => false,
            () = self.interrupt.notified() => true,
            () = self.uses_too_much(link) => return End::TooMuchMemory,
            // one elsewhere goes on, and nobody waits for it
            () = self.over.cancelled() => return End::Failed(CallError::Closed(Reason::default())),
        };
        let stopping = link.ask(json!({"do": "stop"}), STOP_LIMIT);
        let told = timeout(STOP_LIMIT, async { tokio::join!(running, stopping).0.ok() });
        End::Stopped { by_caller, told: told.await.ok().flatten() }
    }

    async fn uses_too_much(&self, link: &Link) {
        let most = self.reach.limits.memory_bytes.unwrap_or(u64::MAX);
        while link.memory_bytes() <= most {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Tells the execution what came of the hand-over. A server that is not known to listen is ended.
    async fn tell(
        &self,
        link: &Link,
        end: End,
        cell: &Cell,
        execution: &mut Execution,
    ) -> Option<Found> {
        let mut heard = Heard::nothing();
        let hearing = (self.output_cap, &mut heard, &OutputSink::discard());
        let answered = |told| match told {
            Told::Answer(answer) => Answer::read(answer),
            Told::Refused(_) | Told::Absent => None,
        };
        match end {
            End::Told(told) => match answered(told) {
                Some(answer) => return Some(answer.tell(execution, cell, hearing)),
                None => unknown(execution, "the server's answer holds no result of the code"),
            },
            End::Stopped { by_caller, told } => {
                let found =
                    told.and_then(answered).map(|answer| answer.tell(execution, cell, hearing));
                if by_caller {
                    tell_interrupt(execution);
                } else {
                    tell_timeout(execution, cell.timeout);
                }
                if found.is_some() {
                    return found;
                }
            }
            End::TooMuchMemory => {
                let message = "the sandbox used more memory than it may".to_owned();
                fail(execution, ExecutionStatus::Error, FailureKind::Oom, message);
            }
            End::Failed(CallError::TooSlow) => tell_timeout(execution, cell.timeout),
            End::Failed(_) if link.has_ended_within(END_LIMIT).await => {
                let message =
                    "the interpreter ended: the code exited, crashed, or ran out of memory";
                fail(execution, ExecutionStatus::Error, FailureKind::Killed, message.to_owned());
            }
            End::Failed(error) => unknown(execution, &error.to_string()),
        }
        link.end().await;
        execution.state_lost = true;
        execution.files_lost = true;
        None
    }

    /// What the cell did to the files.
    fn tell_files(turn: &mut Turn, found: Option<Found>, execution: &mut Execution) {
        let before = turn.listing.take();
        let Some(now) = found.and_then(Found::listing) else { return };
        match before {
            Some(before) => {
                let (changes, whole) = now.changes_since(&before);
                execution.files = changes;
                execution.truncated |= !whole;
            }
            None => execution.truncated = true,
        }
        turn.listing = Some(now);
    }
}

#[async_trait]
impl Sandbox for ServedSandbox {
    fn record(&self) -> SandboxRecord {
        SandboxRecord { sandbox_id: self.id.to_string(), detail: Value::Null }
    }

    fn files_dir(&self) -> String {
        super::ours::FILES_DIR.to_owned()
    }

    async fn adopt(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let mut turn = self.turn().await;
        if self.is_over() || turn.link.as_ref().is_none_or(|link| !link.is_fit()) {
            return Err(SandboxError::Lost);
        }
        self.env.lock().expect("no panic while the environment is held").clone_from(&spec.env);
        let link = self.link(&mut turn).await?;
        self.set_up(&link, &mut turn).await
    }

    async fn execute(&self, cell: &Cell, _: &OutputSink) -> Result<Execution, SandboxError> {
        if cell.language == Language::Shell {
            return Err(SandboxError::Unsupported(NO_SHELL));
        }
        let mut turn = self.turn().await;
        let _ = self.interrupt.notified().now_or_never(); // one meant for an earlier cell
        let mut execution = Execution::of(cell);
        // sees to it that our modules are there, so that no code is handed over in vain
        match self.ask(&mut turn, &json!({"do": "probe"}), LIST_LIMIT).await? {
            Told::Answer(_) => {}
            Told::Refused(_) | Told::Absent => return Err(SandboxError::HeldBack),
        }
        let link = self.link(&mut turn).await?;
        self.running.store(true, Ordering::SeqCst);
        let started = Instant::now();
        let end = self.hand_over(&link, cell).await;
        self.running.store(false, Ordering::SeqCst);
        match end {
            End::Failed(CallError::NotSent) => return Err(CallError::NotSent.into()),
            // our modules did not begin it
            End::Told(Told::Refused(_) | Told::Absent) => return Err(SandboxError::HeldBack),
            end => {
                execution.duration_ms = Some(milliseconds(started.elapsed()));
                let found = self.tell(&link, end, cell, &mut execution).await;
                Self::tell_files(&mut turn, found, &mut execution);
            }
        }
        if execution.status == ExecutionStatus::Unknown {
            execution.duration_ms = None;
        }
        execution.state_lost |= std::mem::take(&mut turn.state_lost);
        execution.files_lost |= std::mem::take(&mut turn.files_lost);
        if self.is_over() {
            tell_ended(&mut execution);
        } else if execution.state_lost && !link.is_fit() {
            turn.link = None; // told already
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
        let mut turn = self.turn().await;
        let link = self.link(&mut turn).await?;
        Ok(self.look(&link).await?.unwrap_or_default().entries())
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
        Ok(()) // a server has no deadline of its own
    }

    async fn terminate(&self) {
        self.over.cancel();
        let current = self.current.lock().expect("no panic while it is held").take();
        if let Some(link) = current {
            link.end().await;
        }
        self.kept.end().await;
    }
}
