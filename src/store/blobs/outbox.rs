//! Blobs on their way to a bucket: staged on disk first, then sent, at once or later.

use std::io::{ErrorKind, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::{Notify, Semaphore};
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;

use super::remote::{NotSent, Remote};
use super::staged::{Next, Room, Staged};
use super::written::Written;
use crate::domain::coded::chain;
use crate::store::StoreError;

/// Blobs that go up at once.
const AT_ONCE: usize = 4;
/// How long a write waits for its blob to go up, and more for a large one. Then it goes on alone.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENT_BYTES_A_SECOND: u64 = 4 << 20;
/// When what waits is tried again: first after so long, then more and more seldom.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 64 << 10;

/// Every blob is whole on this disk or whole in the bucket at any time, or both.
pub(super) struct Outbox {
    staged: Staged,
    remote: Remote,
    /// The last try failed: writes do not wait for the bucket until one succeeds.
    behind: AtomicBool,
    /// It was said that blobs wait.
    told: AtomicBool,
    /// Something waits that nobody is about to send.
    left: Notify,
    places: Semaphore,
}

impl Outbox {
    pub(super) fn new(staged: Staged, remote: Remote) -> Self {
        Self {
            staged,
            remote,
            behind: AtomicBool::new(false),
            told: AtomicBool::new(false),
            left: Notify::new(),
            places: Semaphore::new(AT_ONCE),
        }
    }

    pub(super) fn remote(&self) -> &Remote {
        &self.remote
    }

    pub(super) fn waiting(&self) -> (usize, u64) {
        self.staged.waiting()
    }

    /// Keeps a blob. A bucket that is down or slow does not take it away, nor hold anybody up.
    pub(super) async fn write(
        self: &Arc<Self>,
        blob: String,
        room: Room,
        mut content: BoxStream<'_, std::io::Result<Bytes>>,
    ) -> Result<Written, StoreError> {
        let mut partial = self.staged.begin(blob, room).await?;
        while let Some(piece) = content.next().await {
            partial.add(&piece.map_err(StoreError::Content)?).await?;
        }
        let written = partial.commit().await?;
        self.hand_over(&written).await;
        Ok(written)
    }

    /// What waits here, else what is in the bucket.
    pub(super) async fn read(
        &self,
        blob: &str,
        first: u64,
        length: u64,
    ) -> Result<BoxStream<'static, std::io::Result<Bytes>>, StoreError> {
        if length == 0 {
            return Ok(futures::stream::empty().boxed());
        }
        let Some(mut file) = self.staged.file(blob).await.map_err(StoreError::Content)? else {
            return self.remote.read(blob, first, length).await;
        };
        file.seek(SeekFrom::Start(first)).await.map_err(StoreError::Content)?;
        Ok(ReaderStream::with_capacity(file.take(length), READ_BYTES).boxed())
    }

    pub(super) async fn read_whole(&self, blob: &str, most: u64) -> Result<Bytes, StoreError> {
        let Some(mut file) = self.staged.file(blob).await.map_err(StoreError::Content)? else {
            return self.remote.read_whole(blob, most).await;
        };
        let mut content = Vec::new();
        file.read_to_end(&mut content).await.map_err(StoreError::Content)?;
        Ok(content.into())
    }

    pub(super) async fn remove(&self, blobs: Vec<String>) {
        for blob in &blobs {
            self.staged.remove(blob);
        }
        if self.behind.load(Ordering::Relaxed) {
            return; // those in the bucket are swept one day
        }
        if let Err(error) = self.remote.delete(blobs).await {
            tracing::warn!(error = chain(&error), "blobs were not removed from the bucket");
        }
    }

    /// Sends what waits, again and again until told to stop.
    pub(super) async fn keep_up(&self, stop: &CancellationToken) {
        let mut pause = FIRST_PAUSE;
        let mut last = String::new();
        loop {
            let all = self.send_all(&mut last);
            let sent = tokio::select! {
                () = stop.cancelled() => return,
                sent = all => sent,
            };
            pause = if sent { FIRST_PAUSE } else { (pause * 2).min(LAST_PAUSE) };
            let next = async {
                if self.waiting().0 == 0 {
                    self.caught_up();
                    self.left.notified().await;
                }
                tokio::time::sleep(pause).await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = next => {}
            }
        }
    }

    /// Sends a blob that has just been staged, and waits for it as long as the bucket is well.
    async fn hand_over(self: &Arc<Self>, written: &Written) {
        if self.behind.load(Ordering::Relaxed) {
            self.left.notify_one();
            return;
        }
        let (this, blob) = (Arc::clone(self), written.blob.clone());
        // it goes on when the one who writes is gone, or has waited enough
        let sending = tokio::spawn(async move { this.send(&blob).await });
        let more = Duration::from_secs(written.size_bytes / PATIENT_BYTES_A_SECOND);
        if tokio::time::timeout(PATIENCE + more, sending).await.is_err() {
            self.fall_behind(&StoreError::BucketSlow);
        }
    }

    /// Tries all that waits, beginning after the one that failed last: one that never goes up does
    /// not keep the others back. False when one failed.
    async fn send_all(&self, last: &mut String) -> bool {
        let failed = AtomicBool::new(false);
        let names = futures::stream::iter(self.staged.names(last));
        let mut sent = names
            .map(|blob| async {
                if failed.load(Ordering::Relaxed) {
                    return None;
                }
                let sent = self.send(&blob).await;
                failed.fetch_or(!sent, Ordering::Relaxed);
                (!sent).then_some(blob)
            })
            .buffer_unordered(AT_ONCE);
        while let Some(not_sent) = sent.next().await {
            if let Some(blob) = not_sent {
                *last = blob;
            }
        }
        !failed.load(Ordering::Relaxed)
    }

    /// Sends a blob if it waits and nobody else does. False when it could not be sent.
    async fn send(&self, blob: &str) -> bool {
        let Ok(_place) = self.places.acquire().await else { return false };
        while let Some(taken) = self.staged.take(blob) {
            let sent = match taken.file().await {
                Ok(file) => self.remote.send(blob, file, taken.size_bytes).await,
                Err(error) => Err(NotSent::Content(error)),
            };
            match sent {
                Ok(()) => self.behind.store(false, Ordering::Relaxed),
                Err(NotSent::Content(error)) => {
                    tracing::error!(%error, "a blob that waits for the bucket cannot be read");
                    if error.kind() == ErrorKind::NotFound {
                        self.staged.remove(blob); // somebody has taken it away
                        return true;
                    }
                    self.left.notify_one();
                    return false;
                }
                Err(NotSent::Bucket(error)) => {
                    drop(taken);
                    self.fall_behind(&error);
                    return false;
                }
            }
            match taken.sent() {
                Next::Nothing => return true,
                Next::Again => {}
                Next::Remove => {
                    // when this fails, it is swept one day
                    let _ = self.remote.delete(vec![blob.to_owned()]).await;
                    return true;
                }
            }
        }
        true
    }

    fn fall_behind(&self, error: &StoreError) {
        self.behind.store(true, Ordering::Relaxed);
        if !self.told.swap(true, Ordering::Relaxed) {
            let (blobs, bytes) = self.waiting();
            tracing::warn!(error = chain(error), blobs, bytes, "blobs wait for the bucket");
        }
        self.left.notify_one();
    }

    fn caught_up(&self) {
        self.behind.store(false, Ordering::Relaxed);
        if self.told.swap(false, Ordering::Relaxed) {
            tracing::info!("the bucket has all blobs again");
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use object_store::throttle::{ThrottleConfig, ThrottledStore};
    use object_store::{ObjectStore, ObjectStoreExt};

    use super::*;

    /// An outbox whose bucket takes a while for each blob.
    fn slow(folder: &std::path::Path) -> (Arc<Outbox>, Arc<dyn ObjectStore>) {
        let wait_put_per_call = Duration::from_millis(50);
        let slowness = ThrottleConfig { wait_put_per_call, ..ThrottleConfig::default() };
        let objects: Arc<dyn ObjectStore> =
            Arc::new(ThrottledStore::new(InMemory::new(), slowness));
        let staged = Staged::open(folder.to_owned(), 1 << 30).expect("a folder");
        (Arc::new(Outbox::new(staged, Remote::over(Arc::clone(&objects)))), objects)
    }

    fn write(outbox: &Arc<Outbox>, content: &'static str) -> tokio::task::JoinHandle<()> {
        let outbox = Arc::clone(outbox);
        tokio::spawn(async move {
            let content = futures::stream::iter([Ok(Bytes::from(content))]).boxed();
            outbox.write("ab/one".to_owned(), Room::Bounded, content).await.expect("written");
        })
    }

    /// Waits until the blob is on its way.
    async fn on_its_way(outbox: &Outbox) {
        while outbox.waiting().0 == 0 || outbox.staged.take("ab/one").is_some() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_blob_that_is_written_again_on_its_way_ends_as_the_last_one() {
        for _ in 0..20 {
            let folder = tempfile::tempdir().expect("a folder");
            let (outbox, objects) = slow(folder.path());
            let first = write(&outbox, "first");
            on_its_way(&outbox).await;
            write(&outbox, "last").await.expect("written");
            let read = outbox.read_whole("ab/one", 100).await.expect("read");
            assert_eq!(read, "last", "at once");
            first.await.expect("written");
            while outbox.waiting().0 > 0 {
                tokio::task::yield_now().await;
            }
            let found = objects.get(&Path::from("ab/one")).await.expect("there");
            assert_eq!(found.bytes().await.expect("read"), "last");
        }
    }

    #[tokio::test]
    async fn a_blob_that_is_removed_on_its_way_is_not_in_the_bucket_at_the_end() {
        for _ in 0..20 {
            let folder = tempfile::tempdir().expect("a folder");
            let (outbox, objects) = slow(folder.path());
            let writing = write(&outbox, "content");
            on_its_way(&outbox).await;
            outbox.remove(vec!["ab/one".to_owned()]).await;
            writing.await.expect("written");
            assert!(objects.get(&Path::from("ab/one")).await.is_err());
            let read = outbox.read_whole("ab/one", 100).await;
            assert!(matches!(read, Err(StoreError::BlobMissing)), "{read:?}");
        }
    }

    #[tokio::test]
    async fn more_than_a_payload_may_have_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let (outbox, _) = slow(folder.path());
        write(&outbox, "content").await.expect("written");
        assert!(matches!(outbox.read_whole("ab/one", 6).await, Err(StoreError::BlobSize)));
        assert_eq!(outbox.read_whole("ab/one", 7).await.expect("read"), "content");
    }
}
