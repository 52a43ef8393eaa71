//! Ends of runs that the store could not take, kept on disk until it can.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::domain::coded::chain;
use crate::domain::id::{RunId, Tenant};
use crate::domain::run::Run;
use crate::store::{Finish, Store, StoreError, StoredFile};

/// How often the store is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// Bytes of ends that wait in memory, where the disk takes none.
const MOST_IN_MEMORY: usize = 64 << 20;

/// A folder with a file for each end that waits. What the disk does not take waits in memory: it does
/// not outlive the process, whose next start ends the run as unknown.
#[derive(Clone)]
pub struct Journal(Arc<Inside>);

struct Inside {
    folder: PathBuf,
    memory: Mutex<Memory>,
}

/// What is not on disk: as it would be written, the oldest first.
type Memory = VecDeque<(RunId, Vec<u8>)>;

/// What became of what waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Ends that are written down now.
    pub written: usize,
    /// Entries that cannot be read or are never taken: what they speak of must be kept.
    pub unread: usize,
}

/// What is needed to write an end down later.
#[derive(Serialize, Deserialize)]
struct Entry {
    tenant: String,
    epoch: i64,
    run: Run,
    files: Vec<StoredFile>,
    release_key: bool,
    #[serde(default)]
    conversation: Option<String>,
    /// Lines of JSON.
    #[serde(default)]
    events: Option<String>,
}

impl Journal {
    /// The journal in a folder, which is made where it is missing.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self(Arc::new(Inside { folder, memory: Mutex::default() })))
    }

    /// Keeps an end: on disk, or in memory where the disk takes nothing. False when there is no room.
    pub(super) fn keep(&self, tenant: &Tenant, finish: &Finish<'_>) -> bool {
        let entry = Entry {
            tenant: tenant.name().to_owned(),
            epoch: finish.epoch,
            run: finish.run.clone(),
            files: finish.files.to_vec(),
            release_key: finish.release_key,
            conversation: finish.conversation.clone(),
            events: finish.events.clone().and_then(|events| String::from_utf8(events).ok()),
        };
        let id = finish.run.summary.id;
        let entry = serde_json::to_vec(&entry).expect("runs have string keys");
        let Err(error) = self.write(id, &entry) else { return true };
        let mut memory = self.memory();
        let held: usize = memory.iter().map(|(_, entry)| entry.len()).sum();
        let has_room = held + entry.len() <= MOST_IN_MEMORY;
        if has_room {
            tracing::error!(run.id = %id, %error, "a run's end waits in memory alone");
            memory.push_back((id, entry));
        } else {
            tracing::error!(run.id = %id, %error, "a run's end is lost");
        }
        has_room
    }

    /// True when the end of this run waits here.
    pub(super) fn holds(&self, id: RunId) -> bool {
        self.memory().iter().any(|(waiting, _)| *waiting == id) || self.path(id).exists()
    }

    /// True when no end waits, not even one that cannot be read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory().is_empty() && self.waiting().is_ok_and(|waiting| waiting.is_empty())
    }

    /// How many ends wait.
    #[must_use]
    pub fn count(&self) -> usize {
        self.memory().len() + self.waiting().map_or(0, |waiting| waiting.len())
    }

    /// It is on disk when this returns.
    fn write(&self, id: RunId, entry: &[u8]) -> io::Result<()> {
        let partial = self.0.folder.join(format!("{id}.partial"));
        let written = File::create(&partial).and_then(|mut file| {
            file.write_all(entry)?;
            file.sync_all()
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&partial); // a part would take the room that is missing
            return Err(error);
        }
        fs::rename(&partial, self.path(id))?;
        File::open(&self.0.folder)?.sync_all()
    }

    /// Writes down what waits, as far as the store takes it.
    ///
    /// # Errors
    /// When the store takes none, or the folder cannot be read: what waits is then not known.
    pub async fn replay(&self, store: &dyn Store) -> Result<Replayed, StoreError> {
        let mut replayed = Replayed::default();
        for path in self.waiting().map_err(StoreError::Content)? {
            let Some(entry) = read(&path) else {
                replayed.unread += 1;
                continue;
            };
            if !entry.replay(store).await? {
                replayed.unread += 1;
            } else if fs::remove_file(&path).is_ok() {
                replayed.written += 1;
            }
        }
        for id in self.in_memory() {
            let Some(entry) = self.entry_in_memory(id) else { continue };
            if entry.replay(store).await? {
                self.memory().retain(|(waiting, _)| *waiting != id);
                replayed.written += 1;
            }
        }
        Ok(replayed)
    }

    fn in_memory(&self) -> Vec<RunId> {
        self.memory().iter().map(|(id, _)| *id).collect()
    }

    fn entry_in_memory(&self, id: RunId) -> Option<Entry> {
        let memory = self.memory();
        let (_, entry) = memory.iter().find(|(waiting, _)| *waiting == id)?;
        Some(serde_json::from_slice(entry).expect("it was written so"))
    }

    /// Tries again and again until told to stop.
    pub async fn keep_up(&self, store: Arc<dyn Store>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
            match self.replay(store.as_ref()).await {
                Ok(Replayed { written: 0, .. }) => {}
                Ok(Replayed { written, .. }) => {
                    tracing::info!(runs = written, "ends of runs were written from the journal");
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "the store takes no ends of runs yet");
                }
            }
        }
    }

    fn waiting(&self) -> io::Result<Vec<PathBuf>> {
        let mut waiting = Vec::new();
        for entry in fs::read_dir(&self.0.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                waiting.push(path);
            }
        }
        Ok(waiting)
    }

    fn path(&self, id: RunId) -> PathBuf {
        self.0.folder.join(format!("{id}.json"))
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.memory.lock().expect("no panic while the memory is held")
    }
}

impl Entry {
    /// False when the store will never take it: it holds up nobody else.
    async fn replay(self, store: &dyn Store) -> Result<bool, StoreError> {
        let Self { tenant, epoch, run, files, release_key, conversation, events } = self;
        let (run, files) = (&run, files.as_slice());
        let events = events.map(String::into_bytes);
        let finish = Finish { run, files, events, conversation, epoch, release_key };
        match store.finish_run(&Tenant::named(tenant), &finish).await {
            Ok(_) => Ok(true), // it may have ended before: that end stays
            Err(error @ (StoreError::Database(_) | StoreError::Row(_))) => {
                let id = finish.run.summary.id;
                tracing::error!(run.id = %id, error = chain(&error), "an end in the journal is not taken");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// An entry that cannot be read is left where it is, for people to look at.
fn read(path: &Path) -> Option<Entry> {
    let read = fs::read(path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.inspect_err(|error: &io::Error| tracing::error!(%error, path = %path.display(), "an end in the journal cannot be read")).ok()
}
