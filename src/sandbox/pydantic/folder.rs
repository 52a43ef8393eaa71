//! The folder of one sandbox on this host, which its code sees as `/files`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt;
use rustix::fs::{Mode, OFlags};
use tokio::task::block_in_place;

use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::sandbox::host::files::{self, Files, Upload, blocking, own_doing};
use crate::sandbox::host::folders::{self, Used};
use crate::sandbox::host::listing::Stamp;
use crate::sandbox::{ByteStream, SandboxError};

/// The most files and folders that are counted; more are too many.
const MAX_ENTRIES: u64 = 100_000;

/// What a file takes besides its content.
const BLOCKS_BYTES: u64 = 16 << 10;

/// A folder that goes when this is dropped.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    files: Files,
    most_bytes: Option<u64>,
    /// What is on its way in.
    coming: AtomicU64,
}

/// A part of the room that an upload takes before its file is there.
struct Reserved<'a> {
    coming: &'a AtomicU64,
    bytes: u64,
}

impl Reserved<'_> {
    /// Takes more of it, and gives what all uploads take.
    fn add(&mut self, bytes: u64) -> u64 {
        self.bytes += bytes;
        self.coming.fetch_add(bytes, Ordering::SeqCst) + bytes
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.coming.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl AsRef<Files> for Folder {
    fn as_ref(&self) -> &Files {
        &self.files
    }
}

impl Folder {
    /// Makes a folder that was not there.
    pub(super) fn make(path: PathBuf, most_bytes: Option<u64>) -> io::Result<Self> {
        fs::create_dir(&path)?;
        let open = |flags| {
            rustix::fs::open(&path, flags | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        };
        let files = Files::new(open(OFlags::RDONLY)?, open(OFlags::PATH)?);
        Ok(Self { path, files, most_bytes, coming: AtomicU64::new(0) })
    }

    /// What its files take; None when they are more than can be counted.
    pub(super) fn used_bytes(&self) -> Option<u64> {
        used_bytes(&self.path)
    }

    /// Whether it holds more than it may, with what else its programs hold.
    pub(super) fn is_over(path: &Path, most_bytes: u64, besides: u64) -> bool {
        used_bytes(path).is_none_or(|used| used.saturating_add(besides) > most_bytes)
    }

    /// Takes a file in, whole or not at all.
    pub(super) async fn put(
        self: &Arc<Self>,
        path: &FilePath,
        content: ByteStream,
        max_bytes: u64,
        condition: &Condition,
    ) -> Result<(FileEntry, Stamp), SandboxError> {
        let upload = self.take_in(content, max_bytes).await?;
        let (folder, path, condition) = (Arc::clone(self), path.clone(), condition.clone());
        blocking(move || folder.files.publish(&upload, &path, &condition)).await
    }

    /// Gives what was taken in its name.
    pub(super) fn publish(&self, upload: &Upload, path: &FilePath) -> Result<(), SandboxError> {
        self.files.publish(upload, path, &Condition::Always).map(drop)
    }

    /// A file that is there, as what was taken in.
    pub(super) fn reopen(&self, path: &FilePath) -> Result<Upload, SandboxError> {
        self.files.read(path).map(|(_, file)| Upload { file })
    }

    /// Takes content in that has no name yet.
    pub(super) async fn take_in(
        self: &Arc<Self>,
        mut content: ByteStream,
        max_bytes: u64,
    ) -> Result<Upload, SandboxError> {
        let folder = Arc::clone(self);
        let left = blocking(move || Ok(folder.left_bytes())).await?;
        let mut upload = self.files.upload()?;
        let mut reserved = Reserved { coming: &self.coming, bytes: 0 };
        let mut length = 0;
        while let Some(piece) = content.next().await {
            let piece = piece.map_err(SandboxError::ContentCut)?;
            length += piece.len() as u64;
            if length > max_bytes {
                return Err(SandboxError::FileTooLarge(max_bytes));
            }
            if reserved.add(piece.len() as u64) > left {
                return Err(SandboxError::Full);
            }
            block_in_place(|| upload.file.write_all(&piece)).map_err(own_doing)?;
        }
        Ok(upload)
    }

    fn left_bytes(&self) -> u64 {
        let Some(most) = self.most_bytes else { return u64::MAX };
        // a file takes whole blocks, and its folders too
        self.used_bytes().map_or(0, |used| most.saturating_sub(used + BLOCKS_BYTES))
    }

    pub(super) async fn get(
        self: &Arc<Self>,
        path: &FilePath,
        part: Part,
    ) -> Result<(FileEntry, ByteStream), SandboxError> {
        let (folder, path) = (Arc::clone(self), path.clone());
        let (entry, file) = blocking(move || folder.files.read(&path)).await?;
        files::content(entry, file, part)
    }

    pub(super) async fn list(self: &Arc<Self>) -> Result<Vec<FileEntry>, SandboxError> {
        let folder = Arc::clone(self);
        blocking(move || Ok(folder.files.list().map_err(own_doing)?.entries())).await
    }

    pub(super) async fn remove(
        self: &Arc<Self>,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(), SandboxError> {
        let (folder, path, condition) = (Arc::clone(self), path.clone(), condition.clone());
        blocking(move || folder.files.remove(&path, &condition)).await
    }

    /// Removes it, with all in it.
    pub(super) async fn end(&self) {
        let path = self.path.clone();
        let removed = tokio::task::spawn_blocking(move || remove(&path)).await;
        drop(removed);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || remove(&path));
        }
    }
}

fn remove(path: &Path) {
    match folders::remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, folder = %path.display(), "left behind");
        }
        _ => {}
    }
}

fn used_bytes(path: &Path) -> Option<u64> {
    let mut used = Used::default();
    used.add(path, MAX_ENTRIES).then_some(used.bytes)
}
