//! Contents of files and long payloads, in a folder or in a bucket.

mod folder;
mod outbox;
mod remote;
mod staged;
mod sweep;
pub mod written;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use self::folder::Folder;
use self::outbox::Outbox;
use self::remote::Remote;
use self::staged::{Room, Staged};
use self::sweep::sweep;
use self::written::Written;
use crate::config::Bucket;
use crate::domain::id::{ExecutionId, RunId};
use crate::store::{Store, StoreError};

/// The largest payload that is read back at once.
const MAX_PAYLOAD_BYTES: u64 = 1 << 30;

/// Blobs by names that we make; a blob is durable before anything speaks of it.
#[derive(Clone)]
pub struct Blobs(Place);

#[derive(Clone)]
enum Place {
    Folder(Folder),
    Bucket(Arc<Outbox>),
}

impl Blobs {
    /// Blobs in a folder that exists, which this process alone uses.
    pub fn in_folder(folder: &Path) -> Result<Self, StoreError> {
        Ok(Self(Place::Folder(Folder::open(folder)?)))
    }

    /// Blobs in a bucket, which other replicas may use too. What it does not take at once waits in
    /// the folder `staged`, which is made where it is missing. The bucket itself is not asked.
    pub fn in_bucket(bucket: &Bucket, staged: &Path) -> Result<Self, StoreError> {
        let waiting = Staged::open(staged.to_owned(), bucket.staged_bytes)
            .map_err(|error| StoreError::Folder(staged.to_owned(), error))?;
        Ok(Self(Place::Bucket(Arc::new(Outbox::new(waiting, Remote::connect(bucket)?)))))
    }

    /// Copies a stream into a blob and hashes it on the way. Nothing stays when it breaks off.
    pub async fn write(
        &self,
        content: BoxStream<'_, std::io::Result<Bytes>>,
    ) -> Result<Written, StoreError> {
        let blob = name_of(&ExecutionId::new().to_string());
        match &self.0 {
            Place::Folder(folder) => folder.write(blob, content).await,
            Place::Bucket(outbox) => outbox.write(blob, Room::Bounded, content).await,
        }
    }

    /// Writes one payload of a run. A second try writes the same blob again, and another payload another
    /// one: of several ends of a run the one that is taken keeps its own.
    pub async fn write_whole(
        &self,
        run: RunId,
        what: &str,
        content: Bytes,
    ) -> Result<String, StoreError> {
        let digest: String =
            Sha256::digest(&content)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let blob = format!("{}-{what}-{digest}", name_of(&run.to_string()));
        match &self.0 {
            Place::Folder(folder) => folder.put(&blob, content).await?,
            Place::Bucket(outbox) => {
                let content = futures::stream::iter([Ok(content)]).boxed();
                outbox.write(blob.clone(), Room::Needed, content).await?;
            }
        }
        Ok(blob)
    }

    /// Opens a part of a blob for reading; a length of 0 is that of an empty blob.
    pub async fn read(
        &self,
        blob: &str,
        first: u64,
        length: u64,
    ) -> Result<BoxStream<'static, std::io::Result<Bytes>>, StoreError> {
        match &self.0 {
            Place::Folder(folder) => folder.read(blob, first, length).await,
            Place::Bucket(outbox) => outbox.read(blob, first, length).await,
        }
    }

    /// Reads one payload.
    pub async fn read_whole(&self, blob: &str) -> Result<Bytes, StoreError> {
        match &self.0 {
            Place::Folder(folder) => folder.read_whole(blob).await,
            Place::Bucket(outbox) => outbox.read_whole(blob, MAX_PAYLOAD_BYTES).await,
        }
    }

    /// Removes blobs; one that is gone already is no fault, and one that stays is swept one day.
    pub async fn remove(&self, blobs: Vec<String>) {
        match &self.0 {
            Place::Folder(folder) => folder.remove(blobs).await,
            Place::Bucket(outbox) => outbox.remove(blobs).await,
        }
    }

    /// Removes the old blobs that nothing speaks of and says how many; work may go on meanwhile.
    pub async fn sweep(&self, store: &dyn Store) -> Result<usize, StoreError> {
        let in_use = |shelf: String| -> BoxFuture<'_, _> {
            Box::pin(async move { store.blobs_in_use(&shelf).await })
        };
        match &self.0 {
            Place::Folder(folder) => sweep(folder.objects().as_ref(), folder.ages(), in_use).await,
            Place::Bucket(outbox) => {
                let remote = outbox.remote();
                let swept = sweep(remote.objects(), remote.ages().await?, in_use).await;
                swept.map_err(|error| match error {
                    StoreError::Blob(error) => remote::fault(error),
                    other => other,
                })
            }
        }
    }

    /// Brings to the bucket what waits for it, again and again until told to stop. In a folder
    /// nothing waits.
    pub async fn keep_up(&self, stop: CancellationToken) {
        match &self.0 {
            Place::Folder(_) => stop.cancelled().await,
            Place::Bucket(outbox) => outbox.keep_up(&stop).await,
        }
    }

    /// How many blobs wait for the bucket, and how many bytes they have.
    #[must_use]
    pub fn waiting(&self) -> (usize, u64) {
        match &self.0 {
            Place::Folder(_) => (0, 0),
            Place::Bucket(outbox) => outbox.waiting(),
        }
    }

    /// Tries all that is done with the bucket, and says where it is.
    ///
    /// # Errors
    /// [`StoreError`] of what the bucket does not do.
    pub async fn probe(&self) -> Result<String, StoreError> {
        match &self.0 {
            Place::Folder(_) => Ok("a folder in the data folder".to_owned()),
            Place::Bucket(outbox) => outbox.remote().probe().await,
        }
    }
}

/// Two letters of folder keep folders short; the end of an id is its random part.
fn name_of(id: &str) -> String {
    format!("{}/{id}", &id[id.len() - 2..])
}
