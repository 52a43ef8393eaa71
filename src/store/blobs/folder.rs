//! Blobs in a folder of this host.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, WriteMultipart};
use time::OffsetDateTime;

use super::sweep::Ages;
use super::written::{Tally, Written};
use crate::store::StoreError;

/// What is handed to the disk at once.
const PART_BYTES: usize = 1 << 20;
const PARTS_AT_ONCE: usize = 2;

/// A folder that one process uses.
#[derive(Clone)]
pub(super) struct Folder {
    objects: Arc<dyn ObjectStore>,
    /// When it was opened, in microseconds, as its own file system has the time.
    opened: i64,
}

impl Folder {
    pub(super) fn open(folder: &FilePath) -> Result<Self, StoreError> {
        remove_partial(folder).map_err(StoreError::Content)?;
        let opened = time_in(folder).map_err(StoreError::Content)?;
        let store = LocalFileSystem::new_with_prefix(folder).map_err(StoreError::Blob)?;
        Ok(Self { objects: Arc::new(store.with_fsync(true)), opened })
    }

    pub(super) async fn write(
        &self,
        blob: String,
        mut content: BoxStream<'_, std::io::Result<Bytes>>,
    ) -> Result<Written, StoreError> {
        let path = Path::from(blob.as_str());
        let upload = self.objects.put_multipart(&path).await.map_err(StoreError::Blob)?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut tally = Tally::default();
        while let Some(piece) = content.next().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => {
                    let _ = writer.abort().await;
                    return Err(StoreError::Content(error));
                }
            };
            tally.add(&piece);
            writer.wait_for_capacity(PARTS_AT_ONCE).await.map_err(StoreError::Blob)?;
            writer.put(piece);
        }
        writer.finish().await.map_err(StoreError::Blob)?;
        Ok(tally.written(blob))
    }

    pub(super) async fn put(&self, blob: &str, content: Bytes) -> Result<(), StoreError> {
        let path = Path::from(blob);
        self.objects.put(&path, content.into()).await.map(drop).map_err(StoreError::Blob)
    }

    pub(super) async fn read(
        &self,
        blob: &str,
        first: u64,
        length: u64,
    ) -> Result<BoxStream<'static, std::io::Result<Bytes>>, StoreError> {
        let mut options = GetOptions::default();
        if length > 0 {
            options.range = Some((first..first + length).into()); // an empty range is none to the library
        }
        let found = self.objects.get_opts(&Path::from(blob), options).await.map_err(missing)?;
        Ok(found.into_stream().map_err(std::io::Error::other).boxed())
    }

    pub(super) async fn read_whole(&self, blob: &str) -> Result<Bytes, StoreError> {
        let found = self.objects.get(&Path::from(blob)).await.map_err(missing)?;
        found.bytes().await.map_err(StoreError::Blob)
    }

    pub(super) async fn remove(&self, blobs: Vec<String>) {
        for blob in blobs {
            if let Err(error) = self.objects.delete(&Path::from(blob.as_str())).await {
                tracing::debug!(%error, "a blob was not removed");
            }
        }
    }

    pub(super) fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    pub(super) fn ages(&self) -> Ages {
        Ages { now: microseconds(OffsetDateTime::now_utc()), opened: Some(self.opened) }
    }
}

fn microseconds(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

/// The time as the file system has it: its clock ticks more slowly than the host's, so a file that is
/// made now may be older than what the host's clock says.
fn time_in(folder: &FilePath) -> std::io::Result<i64> {
    let modified = tempfile::tempfile_in(folder)?.metadata()?.modified()?;
    let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// A write that a `kill -9` broke off has left its part as `name#1`, which the library does not list.
fn remove_partial(folder: &FilePath) -> std::io::Result<()> {
    for shelf in std::fs::read_dir(folder)? {
        let shelf = shelf?;
        if !shelf.file_type()?.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(shelf.path())? {
            let file = file?;
            if file.file_name().as_encoded_bytes().contains(&b'#') {
                std::fs::remove_file(file.path())?;
            }
        }
    }
    Ok(())
}

fn missing(error: object_store::Error) -> StoreError {
    match error {
        object_store::Error::NotFound { .. } => StoreError::BlobMissing,
        other => StoreError::Blob(other),
    }
}
