//! A sandbox in a server of somebody else's: all of it waits for its turn.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, Weak};
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
use super::reach::Reach;
use super::{FILES_DIR, NO_SHELL};
use crate::domain::event::OutputSink;
use crate::domain::execution::{
    Cell, Execution, ExecutionStatus, FailureKind, Language, milliseconds,
};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::SessionId;
use crate::domain::limits::Limits;
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
/// To bring in once more what callers have put in.
const BRING_LIMIT: Duration = Duration::from_secs(120);

pub(super) struct ServedSandbox {
    id: SessionId,
    /// Itself, for what goes on after a call.
    pub(super) itself: Weak<Self>,
    reach: Arc<Reach>,
    limits: Limits,
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
        let output_bytes = spec.limits.output_bytes.or(reach.limits.output_bytes);
        let output_bytes = output_bytes.unwrap_or_default();
        let sandbox = Arc::new_cyclic(|itself| Self {
            id: spec.session_id,
            itself: Weak::clone(itself),
            reach,
            limits: spec.limits,
            output_cap: usize::try_from(output_bytes).unwrap_or(usize::MAX),
            env: StdMutex::new(spec.env.clone()),
            turn: Mutex::default(),
            current: StdMutex::new(None),
            kept: Arc::new(kept),
            interrupt: Notify::new(),
            running: AtomicBool::new(false),
            over: CancellationToken::new(),
        });
        sandbox.link(&mut *sandbox.turn.lock().await).await?;
        Ok(sandbox)
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
        drop(self.current().take());
        let linking = async {
            let link = Arc::new(self.reach.link(self.id).await?);
            self.set_up(&link, turn).await?;
            Ok(link)
        };
        let linked = self.over.run_until_cancelled(linking).await;
        let link = linked.unwrap_or(Err(SandboxError::Lost))?;
        *self.current() = Some(Arc::clone(&link));
        turn.link = Some(Arc::clone(&link));
        if self.is_over() {
            link.end().await;
            return Err(SandboxError::Lost);
        }
        Ok(link)
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.current.lock().expect("no panic while it is held")
    }

    /// Brings our modules there, and the files that callers have put in.
    /// Where that fails there is a part of it, and no code must find that.
    async fn set_up(&self, link: &Link, turn: &mut Turn) -> Result<(), SandboxError> {
        let set_up = async {
            let Here { version, packages } =
                link.set_up(&self.env(), self.reach.create_limit).await?;
            let report = ProviderReport { isolation: None, python: Some(version), packages };
            *self.reach.seen.lock().expect("no panic while it is held") = Some(report);
            self.bring_kept(link).await?;
            Ok(listing(link.ask(json!({"do": "list"}), LIST_LIMIT).await?)?)
        };
        let set_up = timeout(self.reach.create_limit + BRING_LIMIT, set_up).await;
        let set_up = set_up.unwrap_or(Err(SandboxError::TooSlow));
        match set_up {
            Ok(listing) => turn.listing = Some(listing),
            Err(error) => {
                link.give_up();
                return Err(error);
            }
        }
        Ok(())
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
                match link.ask(told.clone(), limit).await? {
                    Told::Absent => Err(CallError::BadAnswer("that of our modules").into()),
                    told => Ok(told),
                }
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
        let most = self.limits.memory_bytes.unwrap_or(u64::MAX);
        while link.memory_bytes().await <= most {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Tells the execution what came of the hand-over, and gives the files there are. None when its
    /// server was ended with all that was in it: one that is not known to listen is.
    async fn tell(
        &self,
        link: &Link,
        end: End,
        cell: &Cell,
        execution: &mut Execution,
    ) -> Option<Found> {
        let answer = match &end {
            End::Told(Told::Answer(answer))
            | End::Stopped { told: Some(Told::Answer(answer)), .. } => Answer::read(answer.clone()),
            _ => None,
        };
        let mut heard = Heard::nothing();
        let hearing = (self.output_cap, &mut heard, &OutputSink::discard());
        let found = answer.map(|answer| answer.tell(execution, cell, hearing));
        match end {
            End::Told(_) if found.is_some() => {}
            End::Told(_) => unknown(execution, "the server's answer holds no result of the code"),
            // it may have ended by itself meanwhile
            End::Stopped { .. } if found.is_some() && !was_interrupted(execution) => {}
            End::Stopped { by_caller: true, .. } => tell_interrupt(execution),
            End::Stopped { by_caller: false, .. } | End::Failed(CallError::TooSlow) => {
                execution.failure = None;
                tell_timeout(execution, cell.timeout);
            }
            End::TooMuchMemory => {
                let message = "the sandbox used more memory than it may".to_owned();
                fail(execution, ExecutionStatus::Error, FailureKind::Oom, message);
            }
            End::Failed(_) if link.has_ended_within(END_LIMIT).await => {
                let message =
                    "the interpreter ended: the code exited, crashed, or ran out of memory";
                fail(execution, ExecutionStatus::Error, FailureKind::Killed, message.to_owned());
            }
            End::Failed(error) => unknown(execution, &error.to_string()),
        }
        if found.is_none() {
            link.end().await;
            execution.state_lost = true;
            execution.files_lost = true;
        }
        found
    }

    /// What the cell did to the files. What it has removed is kept no longer.
    async fn tell_files(&self, turn: &mut Turn, found: Found, execution: &mut Execution) {
        let before = turn.listing.take();
        let Some(now) = found.listing() else { return };
        match before {
            Some(before) => {
                let (changes, whole) = now.changes_since(&before);
                execution.files = changes;
                execution.truncated |= !whole;
            }
            None => execution.truncated = true,
        }
        self.forget_all_but(&now).await;
        turn.listing = Some(now);
    }
}

fn was_interrupted(execution: &Execution) -> bool {
    let kind = execution.failure.as_ref().map(|failure| failure.kind);
    kind == Some(FailureKind::Interrupted)
}

/// The files that there are, as our modules say it.
fn listing(told: Told) -> Result<Listing, CallError> {
    let Told::Answer(found) = told else { return Err(CallError::BadAnswer("a list of files")) };
    read_as::<Found>(found)?.listing().ok_or(CallError::BadAnswer("a list of files"))
}

#[async_trait]
impl Sandbox for ServedSandbox {
    fn record(&self) -> SandboxRecord {
        SandboxRecord { sandbox_id: self.id.to_string(), detail: Value::Null }
    }

    fn files_dir(&self) -> String {
        FILES_DIR.to_owned()
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
        let probed = self.ask(&mut turn, &json!({"do": "probe"}), LIST_LIMIT).await;
        match probed {
            Err(_) if self.is_over() => return Err(SandboxError::Lost),
            Err(error) => return Err(error),
            Ok(Told::Answer(_)) => {}
            Ok(Told::Refused(_) | Told::Absent) => return Err(SandboxError::HeldBack),
        }
        let link = self.link(&mut turn).await?;
        self.running.store(true, Ordering::SeqCst);
        let started = Instant::now();
        let end = self.hand_over(&link, cell).await;
        self.running.store(false, Ordering::SeqCst);
        match end {
            End::Failed(CallError::NotSent) => return Err(CallError::NotSent.into()),
            // our modules did not begin it
            End::Told(Told::Absent) => {
                return Err(CallError::BadAnswer("that of our modules").into());
            }
            End::Told(Told::Refused(word)) if word == "busy" => return Err(SandboxError::HeldBack),
            end => {
                execution.duration_ms = Some(milliseconds(started.elapsed()));
                match self.tell(&link, end, cell, &mut execution).await {
                    Some(found) => self.tell_files(&mut turn, found, &mut execution).await,
                    None => (turn.link, turn.listing) = (None, None), // that is told
                }
            }
        }
        if execution.status == ExecutionStatus::Unknown {
            execution.duration_ms = None;
        }
        execution.state_lost |= std::mem::take(&mut turn.state_lost);
        execution.files_lost |= std::mem::take(&mut turn.files_lost);
        if self.is_over() {
            tell_ended(&mut execution);
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
        let told = self.ask(&mut turn, &json!({"do": "list"}), LIST_LIMIT).await?;
        Ok(listing(told)?.entries())
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
        let current = self.current().take();
        if let Some(link) = current {
            link.end().await;
        }
        self.kept.end().await;
    }
}
