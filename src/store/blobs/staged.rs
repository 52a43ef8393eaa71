//! The folder where blobs wait for the bucket, whole or not at all.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::fs::File;
use tokio::io::{AsyncWriteExt, BufWriter};

use super::written::{Tally, Written};
use crate::store::StoreError;

/// What is handed to the disk at once.
const PIECE_BYTES: usize = 1 << 20;
/// What a file counts at least, so that their number is bounded too.
const LEAST_BYTES: u64 = 16 << 10;
const PARTIAL: &str = ".partial";
/// Stands for the slash of a blob's name.
const SLASH: char = '+';

/// Blobs that wait.
pub(super) struct Staged {
    folder: PathBuf,
    most_bytes: u64,
    inside: Mutex<Inside>,
    /// Tells versions apart, and who takes one up.
    next: AtomicU64,
}

#[derive(Default)]
struct Inside {
    /// Those in the folder by their names.
    waiting: BTreeMap<String, Waiting>,
    /// What they and those being written count.
    counted: u64,
}

struct Waiting {
    size_bytes: u64,
    /// Another one after it was written again.
    version: u64,
    /// Who takes it up, where somebody does.
    taken_by: Option<u64>,
}

impl Staged {
    /// Finds what an earlier start left whole, and removes what it left in part.
    pub(super) fn open(folder: PathBuf, most_bytes: u64) -> io::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let mut inside = Inside::default();
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(PARTIAL) {
                std::fs::remove_file(entry.path())?;
                continue;
            }
            let about = entry.metadata()?;
            if !about.is_file() || !name.contains(SLASH) {
                continue; // not ours
            }
            let size_bytes = about.len();
            inside.counted += counted(size_bytes);
            let waiting = Waiting { size_bytes, version: 0, taken_by: None };
            inside.waiting.insert(name.replace(SLASH, "/"), waiting);
        }
        Ok(Self { folder, most_bytes, inside: Mutex::new(inside), next: AtomicU64::new(1) })
    }

    /// Begins a blob, which is there once it is committed.
    pub(super) async fn begin(&self, blob: String, room: Room) -> Result<Partial<'_>, StoreError> {
        let version = self.number();
        let path = self.folder.join(format!("{}.{version}{PARTIAL}", file_name(&blob)));
        // made before the file, so that a begin that is dropped removes it
        let tally = Tally::default();
        let mut partial =
            Partial { staged: self, blob, room, version, path, reserved: 0, file: None, tally };
        partial.reserve(LEAST_BYTES)?;
        let file = File::create(&partial.path).await.map_err(StoreError::Content)?;
        partial.file = Some(BufWriter::with_capacity(PIECE_BYTES, file));
        Ok(partial)
    }

    /// How many wait, and how many bytes they have.
    pub(super) fn waiting(&self) -> (usize, u64) {
        let inside = self.inside();
        (inside.waiting.len(), inside.waiting.values().map(|waiting| waiting.size_bytes).sum())
    }

    /// The names of those that wait, beginning after one of them.
    pub(super) fn names(&self, after: &str) -> Vec<String> {
        let inside = self.inside();
        let (before, behind): (Vec<_>, Vec<_>) =
            inside.waiting.keys().cloned().partition(|name| name.as_str() <= after);
        [behind, before].concat()
    }

    /// A blob for reading, where it waits here.
    pub(super) async fn file(&self, blob: &str) -> io::Result<Option<File>> {
        if !self.inside().waiting.contains_key(blob) {
            return Ok(None);
        }
        match File::open(self.path(blob)).await {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None), // it has just gone up
            Err(error) => Err(error),
        }
    }

    /// Takes a blob for its way up. None: it does not wait, or it is on its way.
    pub(super) fn take(&self, blob: &str) -> Option<Taken<'_>> {
        let mut inside = self.inside();
        let waiting = inside.waiting.get_mut(blob).filter(|waiting| waiting.taken_by.is_none())?;
        let ticket = self.number();
        waiting.taken_by = Some(ticket);
        let (version, size_bytes) = (waiting.version, waiting.size_bytes);
        Some(Taken { staged: self, blob: blob.to_owned(), version, ticket, size_bytes })
    }

    /// Removes a blob that waits; it is no fault when it does not.
    pub(super) fn remove(&self, blob: &str) {
        self.forget(&mut self.inside(), blob);
    }

    /// Under the lock, so that no new version can take the place of the old one meanwhile.
    fn forget(&self, inside: &mut Inside, blob: &str) {
        let Some(waiting) = inside.waiting.remove(blob) else { return };
        inside.counted -= counted(waiting.size_bytes);
        if let Err(error) = std::fs::remove_file(self.path(blob)) {
            tracing::warn!(%error, "a blob that no longer waits was not removed");
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, blob: &str) -> PathBuf {
        self.folder.join(file_name(blob))
    }
}

/// Whether a blob may be refused for want of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// A file: its run has its result without it.
    Bounded,
    /// A payload, without which a run would not end: it would lie in the journal, on the same disk.
    Needed,
}

/// A blob that is being written; when dropped before its end nothing stays of it.
pub(super) struct Partial<'a> {
    staged: &'a Staged,
    blob: String,
    room: Room,
    version: u64,
    path: PathBuf,
    reserved: u64,
    /// None before it is made.
    file: Option<BufWriter<File>>,
    tally: Tally,
}

impl Partial<'_> {
    pub(super) async fn add(&mut self, piece: &Bytes) -> Result<(), StoreError> {
        self.tally.add(piece);
        let size = self.tally.size_bytes();
        if size > self.reserved {
            self.reserve(size - self.reserved)?;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(piece).await.map_err(StoreError::Content)
    }

    /// It is durable and in its place when this returns.
    pub(super) async fn commit(mut self) -> Result<Written, StoreError> {
        if let Some(file) = &mut self.file {
            file.flush().await.map_err(StoreError::Content)?;
            file.get_ref().sync_all().await.map_err(StoreError::Content)?;
        }
        self.take_place().map_err(StoreError::Content)?;
        let folder = File::open(&self.staged.folder).await.map_err(StoreError::Content)?;
        folder.sync_all().await.map_err(StoreError::Content)?;
        let tally = std::mem::take(&mut self.tally);
        Ok(tally.written(std::mem::take(&mut self.blob)))
    }

    fn take_place(&mut self) -> io::Result<()> {
        let mut inside = self.staged.inside();
        std::fs::rename(&self.path, self.staged.path(&self.blob))?;
        let size_bytes = self.tally.size_bytes();
        let before = inside.waiting.remove(&self.blob);
        inside.counted -= before.as_ref().map_or(0, |before| counted(before.size_bytes));
        // an older one that is on its way stays so: two ways at once could end in either order
        let taken_by = before.and_then(|before| before.taken_by);
        let waiting = Waiting { size_bytes, version: self.version, taken_by };
        inside.waiting.insert(self.blob.clone(), waiting);
        // what was reserved is what it counts
        self.reserved = 0;
        self.file = None;
        Ok(())
    }

    fn reserve(&mut self, more: u64) -> Result<(), StoreError> {
        let mut inside = self.staged.inside();
        let counted = inside.counted.saturating_add(more);
        if self.room == Room::Bounded && counted > self.staged.most_bytes {
            return Err(StoreError::BlobsFull);
        }
        inside.counted = counted;
        self.reserved += more;
        Ok(())
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        self.staged.inside().counted -= self.reserved;
        if self.file.take().is_some() || self.reserved > 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A blob on its way up; dropped before its end, it waits again.
pub(super) struct Taken<'a> {
    staged: &'a Staged,
    blob: String,
    version: u64,
    ticket: u64,
    pub(super) size_bytes: u64,
}

/// What is to be done after a blob has gone up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: it waits no longer.
    Nothing,
    /// It was written again meanwhile, and waits again.
    Again,
    /// It was removed meanwhile: what has gone up is nobody's.
    Remove,
}

impl Taken<'_> {
    pub(super) async fn file(&self) -> io::Result<File> {
        File::open(self.staged.path(&self.blob)).await
    }

    /// The blob is in the bucket: it waits no longer.
    pub(super) fn sent(self) -> Next {
        let mut inside = self.staged.inside();
        match inside.waiting.get(&self.blob) {
            Some(waiting) if waiting.version == self.version => {
                self.staged.forget(&mut inside, &self.blob);
                Next::Nothing
            }
            Some(_) => Next::Again,
            None => Next::Remove,
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut inside = self.staged.inside();
        let waiting = inside.waiting.get_mut(&self.blob);
        if let Some(waiting) = waiting.filter(|waiting| waiting.taken_by == Some(self.ticket)) {
            waiting.taken_by = None;
        }
    }
}

fn counted(size_bytes: u64) -> u64 {
    size_bytes.max(LEAST_BYTES)
}

fn file_name(blob: &str) -> String {
    blob.replace('/', &SLASH.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn stage(staged: &Staged, blob: &str, content: &str) -> Result<Written, StoreError> {
        let mut partial = staged.begin(blob.to_owned(), Room::Bounded).await?;
        partial.add(&Bytes::copy_from_slice(content.as_bytes())).await?;
        partial.commit().await
    }

    fn files(folder: &std::path::Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("a folder").flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn what_is_whole_waits_and_what_is_partial_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let staged = Staged::open(folder.path().to_owned(), 1 << 20).expect("opened");
        let written = stage(&staged, "ab/one", "one").await.expect("staged");
        assert_eq!((written.size_bytes, written.blob.as_str()), (3, "ab/one"));
        assert_eq!(
            written.sha256,
            "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
        );
        let mut dropped = staged.begin("cd/two".to_owned(), Room::Bounded).await.expect("begun");
        dropped.add(&Bytes::from_static(b"tw")).await.expect("added");
        assert_eq!(files(folder.path()).len(), 2);
        drop(dropped);
        assert_eq!((files(folder.path()), staged.waiting()), (vec!["ab+one".to_owned()], (1, 3)));
        std::fs::write(folder.path().join("ef+three.7.partial"), "x").expect("written");
        std::fs::write(folder.path().join("README"), "x").expect("written");
        let again = Staged::open(folder.path().to_owned(), 1 << 20).expect("opened");
        assert_eq!((again.names(""), again.waiting()), (vec!["ab/one".to_owned()], (1, 3)));
        assert_eq!(files(folder.path()), ["README", "ab+one"]);
    }

    #[tokio::test]
    async fn there_is_room_for_so_much_and_it_comes_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let staged = Staged::open(folder.path().to_owned(), 3 * LEAST_BYTES).expect("opened");
        let large = "x".repeat(2 * LEAST_BYTES as usize);
        stage(&staged, "ab/small", "x").await.expect("staged");
        stage(&staged, "ab/large", &large).await.expect("staged");
        assert!(matches!(stage(&staged, "cd/x", "").await, Err(StoreError::BlobsFull)));
        assert!(!files(folder.path()).iter().any(|name| name.contains(PARTIAL)));
        staged.remove("ab/small");
        let over = format!("{large}x");
        assert!(matches!(stage(&staged, "cd/x", &over).await, Err(StoreError::BlobsFull)));
        stage(&staged, "cd/x", "y").await.expect("what was reserved is free again");
        assert_eq!(staged.take("ab/large").expect("waits").sent(), Next::Nothing);
        stage(&staged, "cd/x", "again").await.expect("in place of the first, beside it meanwhile");
        assert_eq!(staged.inside().counted, LEAST_BYTES);
    }

    #[tokio::test]
    async fn what_becomes_of_a_blob_on_its_way_is_known_at_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let staged = Staged::open(folder.path().to_owned(), 1 << 20).expect("opened");
        stage(&staged, "ab/one", "one").await.expect("staged");
        let first = staged.take("ab/one").expect("waits");
        assert!(staged.take("ab/one").is_none(), "one way at a time");
        stage(&staged, "ab/one", "other").await.expect("staged");
        assert!(staged.take("ab/one").is_none(), "nor after it was written again");
        assert_eq!(first.sent(), Next::Again);
        let second = staged.take("ab/one").expect("it waits again");
        assert_eq!(second.size_bytes, 5);
        drop(second);
        let third = staged.take("ab/one").expect("one that broke off waits again");
        staged.remove("ab/one");
        assert_eq!((third.sent(), staged.waiting()), (Next::Remove, (0, 0)));
        stage(&staged, "ab/one", "one").await.expect("staged");
        assert_eq!(staged.take("ab/one").expect("waits").sent(), Next::Nothing);
        assert!(
            files(folder.path()).is_empty() && staged.file("ab/one").await.expect("read").is_none()
        );
    }

    #[tokio::test]
    async fn names_begin_after_one_of_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let staged = Staged::open(folder.path().to_owned(), 1 << 20).expect("opened");
        for name in ["ab/1", "cd/2", "ef/3"] {
            stage(&staged, name, "x").await.expect("staged");
        }
        assert_eq!(staged.names(""), ["ab/1", "cd/2", "ef/3"]);
        assert_eq!(staged.names("cd/2"), ["ef/3", "ab/1", "cd/2"]);
    }
}
