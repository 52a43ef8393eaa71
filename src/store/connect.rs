//! Which store there is: the only file that names every one.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::blobs::Blobs;
use super::{Store, StoreError, postgres, sqlite};
use crate::config::{BlobSettings, Database, StoreSettings};
use crate::telemetry::metrics::Metrics;

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
pub async fn open(
    data_dir: &Path,
    settings: &StoreSettings,
    blob_settings: &BlobSettings,
    metrics: &Metrics,
) -> Result<Opened, StoreError> {
    let folder = data_dir.join("blobs");
    std::fs::create_dir_all(&folder)
        .map_err(|error| StoreError::Folder(data_dir.to_owned(), error))?;
    let lock = lock(data_dir)?;
    let blobs = match blob_settings.bucket().map_err(StoreError::BlobSetting)? {
        Some(bucket) => Blobs::in_bucket(&bucket, &data_dir.join("staged"))?,
        None => Blobs::in_folder(&folder)?,
    };
    let tables = match settings.database(data_dir).map_err(StoreError::Setting)? {
        Database::Sqlite(file) => {
            sqlite::open(&file, settings.database_seconds, blobs.clone(), metrics.clone()).await?
        }
        Database::Postgres(url) => {
            postgres::open(&url, settings, data_dir, blobs.clone(), metrics.clone()).await?
        }
    };
    Ok(Opened { store: Arc::new(tables), blobs, lock })
}

/// Brings the tables up to date and does nothing else.
///
/// # Errors
/// [`StoreError::Locked`] when another process has the data folder open that the database is in.
pub async fn migrate(data_dir: &Path, settings: &StoreSettings) -> Result<(), StoreError> {
    match settings.database(data_dir).map_err(StoreError::Setting)? {
        Database::Sqlite(file) => {
            let _lock = lock(data_dir)?;
            sqlite::migrate(&file).await
        }
        Database::Postgres(url) => postgres::migrate(&url).await,
    }
}

fn lock(data_dir: &Path) -> Result<File, StoreError> {
    let folder = |error| StoreError::Folder(data_dir.to_owned(), error);
    let lock = File::create(data_dir.join("lock")).map_err(folder)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(StoreError::Locked(data_dir.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(folder(error)),
    }
}
