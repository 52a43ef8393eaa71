//! Files in and out of a sandbox at E2B.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::Response;
use tokio::time::{Instant, sleep_until, timeout};

use super::envd::{Entry, Envd};
use super::error::E2bError;
use super::listing::{self, Stamp};
use super::sandbox::E2bSandbox;
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::ExecutionId;
use crate::sandbox::{ByteStream, SandboxError};

/// Without progress for so long an upload or a download is given up.
const STALL_LIMIT: Duration = Duration::from_secs(60);

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
            Ok(()) => self.put_in_place(&envd, &beside, path, condition).await,
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
        condition: &Condition,
    ) -> Result<FileEntry, SandboxError> {
        let _changing = self.changing.lock().await;
        let place = self.place(path);
        let noticed = |error| self.noticed(error);
        let there = self.look(envd, path).await?;
        if there.as_ref().is_some_and(|entry| !entry.is_file()) {
            return Err(SandboxError::NotAFile(path.to_string()));
        }
        if !condition.holds(there.as_ref().map(|entry| Stamp::of(entry).etag()).as_deref()) {
            return Err(SandboxError::ConditionFailed);
        }
        let moved = match envd.rename(beside, &place).await {
            Err(E2bError::Refused(_)) if self.leads_through_a_file(envd, path).await => {
                return Err(SandboxError::NotAFile(path.to_string()));
            }
            other => other.map_err(noticed)?,
        };
        let stamp = Stamp::of(&moved);
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
        let entry = listing::entry(path, &Stamp::of(&found));
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
        if wanted.is_some() && response.status().as_u16() != 206 {
            return Err(E2bError::BadAnswer("it sent all of a file for a part of it").into());
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
        if !condition.holds(Some(&Stamp::of(&found).etag())) {
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
}

impl Coming {
    fn new(content: ByteStream, max_bytes: u64) -> Self {
        Self {
            content: Arc::new(StdMutex::new(Some(content))),
            max_bytes,
            moved: Arc::new(StdMutex::new(Instant::now())),
            failure: Arc::default(),
        }
    }

    async fn send(self, envd: &Envd<'_>, path: &str) -> Result<(), SandboxError> {
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
            Err(error) if error.has_status(&[507]) => Err(SandboxError::Full),
            other => other.map_err(Into::into),
        }
    }

    fn body(&self) -> BoxStream<'static, std::io::Result<Bytes>> {
        let content = self.content.lock().expect("no panic while it is held").take();
        let watched = self.clone();
        let mut length = 0;
        let content = content.unwrap_or_else(|| stream::empty().boxed());
        content
            .map(move |piece| {
                *watched.moved.lock().expect("no panic while it is held") = Instant::now();
                let failure = match piece {
                    Ok(piece) => {
                        length += piece.len() as u64;
                        if length <= watched.max_bytes {
                            return Ok(piece);
                        }
                        SandboxError::FileTooLarge(watched.max_bytes)
                    }
                    Err(error) => SandboxError::ContentCut(error),
                };
                *watched.failure.lock().expect("no panic while it is held") = Some(failure);
                Err(std::io::ErrorKind::InvalidData.into())
            })
            .boxed()
    }
}

/// What was asked for, and no more, however much is sent.
fn content(response: Response, length: u64) -> ByteStream {
    let reading = stream::try_unfold((response, length), |(mut response, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let piece = timeout(STALL_LIMIT, response.chunk()).await;
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
