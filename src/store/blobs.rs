//! Contents of files and long payloads, on disk through object_store.

use std::collections::HashSet;
use std::path::Path as FilePath;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, WriteMultipart};
use sha2::{Digest, Sha256};

use crate::domain::id::{ExecutionId, RunId};
use crate::store::StoreError;

/// What is handed to the disk at once.
const PART_BYTES: usize = 1 << 20;
const PARTS_AT_ONCE: usize = 2;

/// Blobs by names that we make; a blob is durable before anything speaks of it.
#[derive(Clone)]
pub struct Blobs(Arc<dyn ObjectStore>);

/// A blob that has been written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its name.
    pub blob: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

impl Blobs {
    /// Blobs in a folder that exists.
    pub fn in_folder(folder: &FilePath) -> Result<Self, StoreError> {
        remove_staged(folder).map_err(StoreError::Content)?;
        let store = LocalFileSystem::new_with_prefix(folder).map_err(StoreError::Blob)?;
        Ok(Self(Arc::new(store.with_fsync(true))))
    }

    /// Copies a stream into a blob and hashes it on the way. Nothing stays when it breaks off.
    pub async fn write(
        &self,
        mut content: BoxStream<'_, std::io::Result<Bytes>>,
    ) -> Result<Written, StoreError> {
        let blob = name_of(&ExecutionId::new().to_string());
        let upload =
            self.0.put_multipart(&Path::from(blob.as_str())).await.map_err(StoreError::Blob)?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut hash = Sha256::new();
        let mut size_bytes = 0;
        while let Some(piece) = content.next().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => {
                    let _ = writer.abort().await;
                    return Err(StoreError::Content(error));
                }
            };
            hash.update(&piece);
            size_bytes += piece.len() as u64;
            writer.wait_for_capacity(PARTS_AT_ONCE).await.map_err(StoreError::Blob)?;
            writer.put(piece);
        }
        writer.finish().await.map_err(StoreError::Blob)?;
        let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Written { blob, size_bytes, sha256 })
    }

    /// Writes one payload of a run. A second try writes the same blob again.
    pub async fn write_whole(
        &self,
        run: RunId,
        what: &str,
        content: Bytes,
    ) -> Result<String, StoreError> {
        let blob = format!("{}-{what}", name_of(&run.to_string()));
        self.0.put(&Path::from(blob.as_str()), content.into()).await.map_err(StoreError::Blob)?;
        Ok(blob)
    }

    /// Opens a part of a blob for reading.
    pub async fn read(
        &self,
        blob: &str,
        first: u64,
        length: u64,
    ) -> Result<BoxStream<'static, std::io::Result<Bytes>>, StoreError> {
        let mut options = GetOptions::default();
        if length > 0 {
            options.range = Some((first..first + length).into()); // an empty range is none to the library
        }
        let found = self.0.get_opts(&Path::from(blob), options).await.map_err(missing)?;
        Ok(found.into_stream().map_err(std::io::Error::other).boxed())
    }

    /// Reads one payload.
    pub async fn read_whole(&self, blob: &str) -> Result<Bytes, StoreError> {
        let found = self.0.get(&Path::from(blob)).await.map_err(missing)?;
        found.bytes().await.map_err(StoreError::Blob)
    }

    /// Removes blobs; one that is gone already is no fault.
    pub async fn remove(&self, blobs: Vec<String>) {
        for blob in blobs {
            if let Err(error) = self.0.delete(&Path::from(blob.as_str())).await {
                tracing::debug!(%error, "a blob was not removed");
            }
        }
    }

    /// Removes the blobs that nothing speaks of and says how many. Only while nothing is written.
    pub async fn sweep(&self, in_use: Vec<String>) -> Result<usize, StoreError> {
        let in_use: HashSet<String> = in_use.into_iter().collect();
        let mut swept = 0;
        let mut found = self.0.list(None);
        while let Some(object) = found.try_next().await.map_err(StoreError::Blob)? {
            if !in_use.contains(object.location.as_ref()) {
                self.0.delete(&object.location).await.map_err(StoreError::Blob)?;
                swept += 1;
            }
        }
        Ok(swept)
    }
}

/// Two letters of folder keep folders short; the end of an id is its random part.
fn name_of(id: &str) -> String {
    format!("{}/{id}", &id[id.len() - 2..])
}

/// A write that a `kill -9` broke off has left its part as `name#1`, which the library does not list.
fn remove_staged(folder: &FilePath) -> std::io::Result<()> {
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
