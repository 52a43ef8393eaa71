//! Files in and out of a sandbox at E2B.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::Response;
use reqwest::header::CONTENT_RANGE;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::envd::{Entry, Envd};
use super::error::E2bError;
use super::sandbox::E2bSandbox;
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::ExecutionId;
use crate::sandbox::listing;
use crate::sandbox::{ByteStream, SandboxError};

/// Without progress for so long an upload or a download is given up.
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// Bytes a second; a download that is slower on the whole is given up too.
const SLOWEST_BYTES: u64 = 50_000;

impl E2bSandbox {
    /// Writes a file: beside its place first, so that it is there whole or not at all.
    pub(super) async fn put(
        &self,
        path: &FilePath,
        content: ByteStream,
        max_bytes: u64,
        condition: &Condition,
    ) -> Result<FileEntry, SandboxError> {
        let door = self.door().await?;
        let envd = self.envd(&door);
        let beside = self.beside();
        let coming = Coming::new(content, max_bytes);
        let sent = coming.clone().send(&envd, &beside).await;
        let put = match sent {
            Ok(length) => self.put_in_place(&envd, &beside, path, (condition, length)).await,
            Err(error) => Err(error),
        };
        if put.is_err() {
            let _ = envd.remove(&beside).await;
        }
        put
    }

    async fn put_in_place(
        &self,
        envd: &Envd<'_>,
        beside: &str,
        path: &FilePath,
        (condition, length): (&Condition, u64),
    ) -> Result<FileEntry, SandboxError> {
        let _changing = self.changing.lock().await;
        let place = self.place(path);
        let noticed = |error| self.noticed(error);
        let there = self.look(envd, path).await?;
        if there.as_ref().is_some_and(|entry| !entry.is_file()) {
            return Err(SandboxError::NotAFile(path.to_string()));
        }
        if !condition.holds(there.as_ref().map(|entry| entry.stamp().etag()).as_deref()) {
            return Err(SandboxError::ConditionFailed);
        }
        let moved = match envd.rename(beside, &place).await {
            Err(E2bError::Refused(_)) if self.leads_through_a_file(envd, path).await => {
                return Err(SandboxError::NotAFile(path.to_string()));
            }
            other => other.map_err(noticed)?,
        };
        if moved.size() != length {
            let _ = envd.remove(&place).await;
            return Err(E2bError::BadAnswer("a file did not arrive whole").into());
        }
        let stamp = moved.stamp();
        let entry = listing::entry(path, &stamp);
        if let Some(listing) = self.listing().as_mut() {
            listing.files.insert(path.clone(), stamp);
        }
        Ok(entry)
    }

    pub(super) async fn get(
        &self,
        path: &FilePath,
        part: Part,
    ) -> Result<(FileEntry, ByteStream), SandboxError> {
        let door = self.door().await?;
        let envd = self.envd(&door);
        let place = self.place(path);
        let found = self.file(&envd, path).await?;
        let entry = listing::entry(path, &found.stamp());
        let size = entry.size_bytes;
        let (first, length) = part.within(size).ok_or(SandboxError::NoSuchPart(size))?;
        if length == 0 {
            return Ok((entry, stream::empty().boxed()));
        }
        let wanted = (length < size).then_some((first, length));
        let response = match envd.download(&place, wanted).await {
            Err(error) if error.has_status(&[404]) => {
                return Err(SandboxError::NoSuchFile(path.to_string()));
            }
            other => other.map_err(|error| self.noticed(error))?,
        };
        let is_wanted = match wanted {
            Some((first, _)) => begins_at(&response, first),
            None => response.status().as_u16() == 200,
        };
        if !is_wanted {
            return Err(E2bError::BadAnswer("it sent another part of a file").into());
        }
        Ok((entry, content(response, length)))
    }

    pub(super) async fn remove(
        &self,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(), SandboxError> {
        let door = self.door().await?;
        let envd = self.envd(&door);
        let _changing = self.changing.lock().await;
        let found = self.file(&envd, path).await?;
        if !condition.holds(Some(&found.stamp().etag())) {
            return Err(SandboxError::ConditionFailed);
        }
        envd.remove(&self.place(path)).await.map_err(|error| self.noticed(error))?;
        if let Some(listing) = self.listing().as_mut() {
            listing.files.remove(path);
        }
        Ok(())
    }

    async fn file(&self, envd: &Envd<'_>, path: &FilePath) -> Result<Entry, SandboxError> {
        let found = self.look(envd, path).await?;
        let found = found.ok_or_else(|| SandboxError::NoSuchFile(path.to_string()))?;
        if found.is_file() { Ok(found) } else { Err(SandboxError::NotAFile(path.to_string())) }
    }

    /// What a path names; None where there is nothing.
    async fn look(&self, envd: &Envd<'_>, path: &FilePath) -> Result<Option<Entry>, SandboxError> {
        match envd.stat(&self.place(path)).await {
            Err(E2bError::Refused(_)) if self.leads_through_a_file(envd, path).await => {
                Err(SandboxError::NotAFile(path.to_string()))
            }
            other => other.map_err(|error| self.noticed(error)),
        }
    }

    /// Whether one of the folders of a path is none.
    async fn leads_through_a_file(&self, envd: &Envd<'_>, path: &FilePath) -> bool {
        let text = path.as_str();
        for (end, _) in text.match_indices('/') {
            let folder = format!("{}/{}", self.here.files_dir, &text[..end]);
            match envd.stat(&folder).await {
                Ok(Some(entry)) if !entry.is_folder() => return true,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return false,
            }
        }
        false
    }

    fn place(&self, path: &FilePath) -> String {
        format!("{}/{path}", self.here.files_dir)
    }

    /// A name beside the files folder, on the same file system.
    fn beside(&self) -> String {
        let parent = self.here.files_dir.rsplit_once('/').map_or("", |(parent, _)| parent);
        format!("{parent}/.interpreterd-{}", ExecutionId::new())
    }
}

/// Content on its way in, watched: how much there is, when it last moved, why it ended early.
#[derive(Clone)]
struct Coming {
    content: Arc<StdMutex<Option<ByteStream>>>,
    max_bytes: u64,
    moved: Arc<StdMutex<Instant>>,
    failure: Arc<StdMutex<Option<SandboxError>>>,
    /// How much there was, once its end was read.
    sent: Arc<StdMutex<Option<u64>>>,
}

impl Coming {
    fn new(content: ByteStream, max_bytes: u64) -> Self {
        Self {
            content: Arc::new(StdMutex::new(Some(content))),
            max_bytes,
            moved: Arc::new(StdMutex::new(Instant::now())),
            failure: Arc::default(),
            sent: Arc::default(),
        }
    }

    /// Sends all of it, and says how much that was.
    async fn send(self, envd: &Envd<'_>, path: &str) -> Result<u64, SandboxError> {
        let stalled = async {
            loop {
                let moved = *self.moved.lock().expect("no panic while it is held");
                sleep_until(moved + STALL_LIMIT).await;
                if *self.moved.lock().expect("no panic while it is held") == moved {
                    return;
                }
            }
        };
        let sent = tokio::select! {
            sent = envd.upload(path, self.body()) => sent,
            () = stalled => Err(E2bError::TooSlow),
        };
        if let Some(failure) = self.failure.lock().expect("no panic while it is held").take() {
            return Err(failure);
        }
        match sent {
            Err(error) if error.has_status(&[507]) => return Err(SandboxError::Full),
            other => other?,
        }
        // an answer that comes before all was read says nothing of what was not
        match *self.sent.lock().expect("no panic while it is held") {
            Some(length) => Ok(length),
            None => Err(E2bError::BadAnswer("it did not read all of a file").into()),
        }
    }

    fn body(&self) -> BoxStream<'static, std::io::Result<Bytes>> {
        let content = self.content.lock().expect("no panic while it is held").take();
        let watched = self.clone();
        let (length, sent) = (Arc::new(AtomicU64::new(0)), Arc::clone(&self.sent));
        let whole = Arc::clone(&length);
        let at_the_end = stream::iter(std::iter::from_fn(move || {
            let length = Some(whole.load(Ordering::SeqCst));
            *sent.lock().expect("no panic while it is held") = length;
            None
        }));
        let content = content.unwrap_or_else(|| stream::empty().boxed());
        content
            .map(move |piece| {
                *watched.moved.lock().expect("no panic while it is held") = Instant::now();
                let failure = match piece {
                    Ok(piece) => {
                        let added = piece.len() as u64;
                        if length.fetch_add(added, Ordering::SeqCst) + added <= watched.max_bytes {
                            return Ok(piece);
                        }
                        SandboxError::FileTooLarge(watched.max_bytes)
                    }
                    Err(error) => SandboxError::ContentCut(error),
                };
                *watched.failure.lock().expect("no panic while it is held") = Some(failure);
                Err(std::io::ErrorKind::InvalidData.into())
            })
            .chain(at_the_end)
            .boxed()
    }
}

/// Whether an answer holds the part of a file that begins there (RFC 9110, section 14.4).
fn begins_at(response: &Response, first: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let begin =
        range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok());
    response.status().as_u16() == 206 && begin == Some(first)
}

/// What was asked for, and no more, however much is sent; slower than anybody waits for is a failure.
fn content(response: Response, length: u64) -> ByteStream {
    let deadline = Instant::now() + STALL_LIMIT + Duration::from_secs(length / SLOWEST_BYTES);
    let reading = stream::try_unfold((response, length), move |(mut response, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let patience = deadline.min(Instant::now() + STALL_LIMIT);
        let piece = timeout_at(patience, response.chunk()).await;
        let piece = piece.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?;
        let piece = piece.map_err(|error| std::io::Error::other(error.without_url()))?;
        let Some(mut piece) = piece else {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        };
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - piece.len() as u64;
        Ok(Some((piece, (response, left))))
    });
    reading.into_stream().boxed()
}
