//! Ends of runs that the store could not take, kept on disk until it can.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::domain::coded::chain;
use crate::domain::id::{RunId, Tenant};
use crate::domain::run::Run;
use crate::store::{Finish, Store, StoreError, StoredFile};

/// How often the store is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// A folder with a file for each end that waits.
#[derive(Clone)]
pub struct Journal(Arc<PathBuf>);

/// What became of what waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Ends that are written down now.
    pub written: usize,
    /// Entries that cannot be read: what they speak of must be kept.
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
}

impl Journal {
    /// The journal in a folder, which is made where it is missing.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self(Arc::new(folder)))
    }

    /// Keeps an end: it is on disk when this returns.
    pub(super) fn keep(&self, tenant: &Tenant, finish: &Finish<'_>) -> io::Result<()> {
        let entry = Entry {
            tenant: tenant.name().to_owned(),
            epoch: finish.epoch,
            run: finish.run.clone(),
            files: finish.files.to_vec(),
            release_key: finish.release_key,
            conversation: finish.conversation.clone(),
        };
        let id = finish.run.summary.id;
        let partial = self.0.join(format!("{id}.partial"));
        let mut file = File::create(&partial)?;
        file.write_all(&serde_json::to_vec(&entry)?)?;
        file.sync_all()?;
        fs::rename(&partial, self.path(id))?;
        File::open(self.0.as_path())?.sync_all()
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
            let Entry { tenant, epoch, run, files, release_key, conversation } = entry;
            let (run, files) = (&run, files.as_slice());
            let finish = Finish { run, files, events: None, epoch, release_key, conversation };
            store.finish_run(&Tenant::named(tenant), &finish).await?;
            if fs::remove_file(&path).is_ok() {
                replayed.written += 1;
            }
        }
        Ok(replayed)
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
        for entry in fs::read_dir(self.0.as_path())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                waiting.push(path);
            }
        }
        Ok(waiting)
    }

    fn path(&self, id: RunId) -> PathBuf {
        self.0.join(format!("{id}.json"))
    }
}

/// An entry that cannot be read is left where it is, for people to look at.
fn read(path: &Path) -> Option<Entry> {
    let read = fs::read(path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.inspect_err(|error: &io::Error| tracing::error!(%error, path = %path.display(), "an end in the journal cannot be read")).ok()
}
