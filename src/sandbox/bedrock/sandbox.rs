//! One sandbox at AWS, as a session has it: a machine, and another one where that is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use super::client::Started;
use super::error::BedrockError;
use super::follow::stop_file;
use super::machine::{Listens, Machine};
use super::making::{MARGIN, Making, Order};
use super::programs::Here;
use crate::domain::coded::chain;
use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Execution, Language};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::SessionId;
use crate::domain::package::PackageSet;
use crate::domain::session::SandboxRecord;
use crate::sandbox::listing::{Listing, Stamp};
use crate::sandbox::told::Found;
use crate::sandbox::{ByteStream, Sandbox, SandboxError, SandboxSpec};

/// A machine outlives each cell by so much at least: what came of the cell must be told too.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(10);
/// How long a look at the files before a cell may take.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// How long a change of a caller is waited for.
const CHANGE_LIMIT: Duration = Duration::from_secs(5);
/// The file that stops what runs, whatever it is.
const STOP_ANY: &str = "stop-any";
/// How long a kernel may take to say that it listens.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

pub(super) struct BedrockSandbox {
    pub(super) making: Arc<Making>,
    order: Order,
    pub(super) output_cap: usize,
    /// One cell at a time.
    turn: Mutex<()>,
    /// None when another one must be made. Held while that is done.
    machine: Mutex<Option<Arc<Machine>>>,
    /// The machine that there is, or was last.
    last: StdMutex<Last>,
    files: StdMutex<Files>,
    /// Held while a file is put in place or removed.
    pub(super) changing: Mutex<()>,
    pub(super) interrupt: Notify,
    /// Its kernel may be running what nobody waits for.
    suspect: AtomicBool,
    state_lost: AtomicBool,
    files_lost: AtomicBool,
    running: AtomicBool,
    is_over: AtomicBool,
}

/// What is known of the files.
#[derive(Default)]
struct Files {
    /// As they were when the last cell ended; None when nobody looked.
    listing: Option<Listing>,
    /// What callers have put in since the running cell began.
    put_in: Listing,
}

#[derive(Clone)]
struct Last {
    id: String,
    here: Here,
    ends_at: OffsetDateTime,
}

impl Last {
    fn of(machine: &Machine) -> Self {
        Self { id: machine.id.clone(), here: machine.here.clone(), ends_at: machine.ends_at }
    }
}

/// What a record holds besides the machine's id.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Detail {
    pub(super) here: Here,
    #[serde(with = "time::serde::rfc3339")]
    pub(super) ends_at: OffsetDateTime,
    /// Bytes of each stream that are kept of a cell.
    pub(super) output_bytes: Option<u64>,
    /// What must be installed into another machine.
    #[serde(default)]
    pub(super) packages: PackageSet,
    /// The session that it is for.
    pub(super) session_id: SessionId,
}

impl BedrockSandbox {
    pub(super) fn new(
        making: Arc<Making>,
        order: Order,
        machine: Machine,
        output_cap: usize,
        is_new: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            making,
            order,
            output_cap,
            turn: Mutex::new(()),
            last: StdMutex::new(Last::of(&machine)),
            machine: Mutex::new(Some(Arc::new(machine))),
            files: StdMutex::new(Files {
                listing: is_new.then(Listing::default),
                ..Files::default()
            }),
            changing: Mutex::new(()),
            interrupt: Notify::new(),
            suspect: AtomicBool::new(!is_new),
            state_lost: AtomicBool::new(false),
            files_lost: AtomicBool::new(false),
            running: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    /// The machine; where the last one is gone, another one, without its variables and files.
    pub(super) async fn machine(&self) -> Result<Arc<Machine>, SandboxError> {
        let mut held = self.machine.lock().await;
        if self.is_over() {
            return Err(SandboxError::Lost);
        }
        if let Some(machine) = held.as_ref().filter(|machine| !machine.is_gone()) {
            return Ok(Arc::clone(machine));
        }
        if let Some(gone) = held.take() {
            self.note_loss();
            self.stop(&gone); // who said that it is gone may have been wrong
        }
        let machine = Arc::new(Making::made(&self.making, &self.order).await?);
        if self.is_over() {
            self.stop(&machine);
            return Err(SandboxError::Lost);
        }
        *self.last.lock().expect("no panic while it is held") = Last::of(&machine);
        *held = Some(Arc::clone(&machine));
        Ok(machine)
    }

    /// Gives a machine up: the next call makes another one.
    pub(super) async fn give_up(&self, machine: &Machine) {
        let mut held = self.machine.lock().await;
        if held.as_ref().is_some_and(|held| held.id == machine.id) {
            *held = None;
            self.note_loss();
        }
        drop(held);
        self.stop(machine);
    }

    fn stop(&self, machine: &Machine) {
        self.making.stop_later(machine.id.clone());
    }

    fn note_loss(&self) {
        self.state_lost.store(true, Ordering::SeqCst);
        self.files_lost.store(true, Ordering::SeqCst);
        self.suspect.store(false, Ordering::SeqCst);
        *self.files() = Files { listing: Some(Listing::default()), ..Files::default() };
        if !self.is_over() {
            let id = self.last.lock().expect("no panic while it is held").id.clone();
            tracing::warn!(
                sandbox.id = id,
                "a sandbox at AWS is gone: its session gets another one"
            );
        }
    }

    fn suspect(&self) {
        self.suspect.store(true, Ordering::SeqCst);
    }

    fn lose_state(&self) {
        self.state_lost.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(super) fn env(&self) -> &std::collections::BTreeMap<String, String> {
        &self.order.env
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().expect("no panic while the files are held")
    }

    /// The files as they are before a cell, where they were not looked at since the last one.
    async fn know_files(&self, machine: &Machine) {
        let is_known = self.files().listing.is_some();
        if !is_known && let Ok(Ok(listing)) = timeout(LOOK_LIMIT, self.look(machine)).await {
            self.files().listing.get_or_insert(listing);
        }
        self.files().put_in = Listing::default();
    }

    /// What is not known of the files is looked at before the next cell.
    pub(super) fn forget_files(&self) {
        self.files().listing = None;
    }

    /// A machine that outlives what is to be done, with a kernel that listens.
    pub(super) async fn fit_machine(&self, cell: &Cell) -> Result<Arc<Machine>, SandboxError> {
        let machine = self.machine().await?;
        if machine.left() < cell.timeout + LAST_WORDS {
            let left = machine.left().saturating_sub(LAST_WORDS).as_secs();
            return Err(SandboxError::EndsTooSoon { left, needed: cell.timeout.as_secs_f64() });
        }
        if self.suspect.load(Ordering::SeqCst) {
            let _ = timeout(PROBE_LIMIT, machine.end_left()).await;
            self.look_after(&machine, STOP_ANY).await?;
        }
        let machine = self.machine().await?;
        self.know_files(&machine).await;
        Ok(machine)
    }

    /// Finds out what became of a machine's kernel, which is told to stop what it runs. One that does
    /// not listen is given up with its machine. An error when nothing can be known now.
    pub(super) async fn look_after(
        &self,
        machine: &Arc<Machine>,
        stop: &str,
    ) -> Result<(), BedrockError> {
        self.suspect();
        match machine.listens(Some(stop), PROBE_LIMIT).await? {
            Listens::Yes => self.suspect.store(false, Ordering::SeqCst),
            Listens::Anew => {
                self.lose_state();
                match machine.set_up(self.env()).await {
                    Ok(()) => self.suspect.store(false, Ordering::SeqCst),
                    Err(_) => self.give_up(machine).await,
                }
            }
            Listens::No | Listens::Gone => self.give_up(machine).await,
        }
        Ok(())
    }

    /// Whether a kernel is a new one. It is set up then, and what that cost is noted.
    pub(super) async fn is_anew(&self, machine: &Arc<Machine>) -> Result<bool, SandboxError> {
        let listens = machine.listens(None, PROBE_LIMIT).await?;
        if listens == Listens::Anew {
            self.lose_state();
            machine.set_up(self.env()).await?;
        }
        Ok(listens == Listens::Anew)
    }

    /// The same after a cell that ended badly: what cannot be known now is looked for before the next one.
    pub(super) async fn look_after_later(&self, machine: &Arc<Machine>, cell: &Cell) {
        let stop = stop_file(&cell.id.to_string());
        if let Err(error) = self.look_after(machine, &stop).await {
            tracing::warn!(
                error = chain(&error),
                sandbox.id = machine.id,
                "it is not known whether a kernel listens"
            );
        }
    }

    /// What the cell did to the files, told in its execution.
    pub(super) async fn tell_files(&self, found: Option<Found>, execution: &mut Execution) {
        // what a caller puts in just now may be there already, and is not noted yet
        let _changed = timeout(CHANGE_LIMIT, self.changing.lock()).await;
        let mut files = self.files();
        let put_in = std::mem::take(&mut files.put_in);
        let before = files.listing.take();
        let Some(now) = found.and_then(Found::listing) else {
            execution.truncated = true; // what is not known is not told
            return;
        };
        let Some(before) = before else {
            execution.truncated = true;
            files.listing = Some(now);
            return;
        };
        let (mut changes, whole) = now.changes_since(&before);
        // what callers have put in since the cell looked is no change of the cell
        let newer = put_in.newer_than(&now);
        changes.retain(|change| !newer.has(&change.path));
        files.listing = Some(now.with(newer));
        execution.files = changes;
        execution.truncated |= !whole;
    }

    /// A caller has put a file in.
    pub(super) fn note_put(&self, path: &FilePath, stamp: Stamp) {
        let mut files = self.files();
        files.put_in.files.insert(path.clone(), stamp);
        if let Some(listing) = &mut files.listing {
            listing.files.insert(path.clone(), stamp);
        }
    }

    /// A caller has removed a file.
    pub(super) fn note_removed(&self, path: &FilePath) {
        let mut files = self.files();
        files.put_in.files.remove(path);
        if let Some(listing) = &mut files.listing {
            listing.files.remove(path);
        }
    }

    /// Whether a machine was given up.
    pub(super) async fn has_lost(&self, machine: &Machine) -> bool {
        self.machine.lock().await.as_ref().is_none_or(|held| held.id != machine.id)
    }
}

#[async_trait]
impl Sandbox for BedrockSandbox {
    fn record(&self) -> SandboxRecord {
        let Last { id, here, ends_at } =
            self.last.lock().expect("no panic while it is held").clone();
        let detail = Detail {
            here,
            ends_at,
            output_bytes: Some(self.output_cap as u64),
            packages: self.order.packages.clone(),
            session_id: self.order.session_id,
        };
        SandboxRecord { sandbox_id: id, detail: serde_json::to_value(detail).unwrap_or_default() }
    }

    fn files_dir(&self) -> String {
        self.last.lock().expect("no panic while it is held").here.files_dir.clone()
    }

    fn ends_at(&self) -> Option<OffsetDateTime> {
        let ends_at = self.last.lock().expect("no panic while it is held").ends_at;
        Some(ends_at - MARGIN)
    }

    /// Its time counts from its making, so none is kept ready.
    async fn adopt(&self, _: &SandboxSpec) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("its sandboxes are made for one session"))
    }

    async fn execute(&self, cell: &Cell, sink: &OutputSink) -> Result<Execution, SandboxError> {
        let _turn = self.turn.lock().await;
        let _ = self.interrupt.notified().now_or_never(); // one meant for an earlier cell
        self.running.store(true, Ordering::SeqCst);
        let executed = match cell.language {
            Language::Python => self.run_python(cell, sink).await,
            Language::Shell => self.run_shell(cell, sink).await,
        };
        self.running.store(false, Ordering::SeqCst);
        let mut execution = executed?;
        execution.files_lost |= self.files_lost.swap(false, Ordering::SeqCst);
        if cell.language == Language::Python || execution.files_lost {
            execution.state_lost |= self.state_lost.swap(false, Ordering::SeqCst);
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
        self.list().await
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

    /// AWS puts no end off.
    async fn extend(&self, lifetime: Duration) -> Result<(), SandboxError> {
        match self.ends_at() {
            Some(ends_at) if OffsetDateTime::now_utc() + lifetime > ends_at => {
                Err(SandboxError::EndsAt(ends_at))
            }
            _ => Ok(()),
        }
    }

    async fn terminate(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        let id = self.last.lock().expect("no panic while it is held").id.clone();
        Making::stop(&self.making, &id).await;
    }
}

/// A machine that an earlier start of the service has made.
pub(super) fn started(record: &SandboxRecord, detail: &Detail) -> Started {
    Started { id: record.sandbox_id.clone(), ends_at: detail.ends_at }
}
