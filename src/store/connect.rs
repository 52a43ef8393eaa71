//! Which store there is: the only file that names every one.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::blobs::Blobs;
use super::sqlite::SqliteStore;
use super::{Store, StoreError};

/// An open store, its blobs, and the lock that keeps other processes away.
pub struct Opened {
    /// Runs and sessions.
    pub store: Arc<dyn Store>,
    /// Contents of files.
    pub blobs: Blobs,
    /// Held until the process ends.
    pub lock: File,
}

/// Opens what is in the data folder, which is made where it is missing.
///
/// # Errors
/// [`StoreError::Locked`] when another process has it open.
pub async fn open(data_dir: &Path) -> Result<Opened, StoreError> {
    let folder = |error| StoreError::Folder(data_dir.to_owned(), error);
    let blobs = data_dir.join("blobs");
    std::fs::create_dir_all(&blobs).map_err(folder)?;
    let lock = File::create(data_dir.join("lock")).map_err(folder)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            return Err(StoreError::Locked(data_dir.to_owned()));
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(folder(error)),
    }
    let blobs = Blobs::in_folder(&blobs)?;
    let store = SqliteStore::open(&data_dir.join("interpreterd.db"), blobs.clone()).await?;
    Ok(Opened { store: Arc::new(store), blobs, lock })
}
