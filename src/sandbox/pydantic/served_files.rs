//! Files in and out of a server of somebody else's, a piece at a time.

use std::os::unix::fs::FileExt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::error::CallError;
use super::link::{Link, Told, read_as};
use super::served::{ServedSandbox, Turn};
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::ExecutionId;
use crate::sandbox::host::files::{Upload, blocking, own_doing};
use crate::sandbox::listing::{self, Listing, Stamp};
use crate::sandbox::told::stamp;
use crate::sandbox::{ByteStream, SandboxError};

/// The server gathers a message in a way that takes time by the square of its length.
const PIECE_BYTES: usize = 256 << 10;
const READ_BYTES: u64 = 1 << 20;
const WORK_LIMIT: Duration = Duration::from_secs(30);

/// A file as it was put in place.
#[derive(Deserialize)]
struct Put {
    entry: (u64, i64),
}

/// A part of a file.
#[derive(Deserialize)]
struct Slice {
    entry: (u64, i64),
    first: u64,
    content: String,
}

impl Slice {
    fn stamp(&self) -> Stamp {
        stamp(self.entry.0, self.entry.1)
    }

    /// Its content, if that is no more than was asked for.
    fn content(&self, most: u64) -> Result<Bytes, CallError> {
        let content = STANDARD.decode(&self.content).ok();
        let content = content.filter(|content| content.len() as u64 <= most);
        Ok(content.ok_or(CallError::BadAnswer("a part of a file"))?.into())
    }
}

impl ServedSandbox {
    /// Puts a file in: whole or not at all. It is kept here too, for another server after this one.
    pub(super) async fn put(
        &self,
        path: &FilePath,
        content: ByteStream,
        max_bytes: u64,
        condition: &Condition,
    ) -> Result<FileEntry, SandboxError> {
        let upload = Arc::new(self.kept.take_in(content, max_bytes).await?);
        let mut turn = self.turn().await;
        let link = self.fit_link(&mut turn).await?;
        let put = send(&link, &upload, path, condition).await?;
        let kept = Arc::clone(&self.kept);
        let inside = path.clone();
        // its own code may have put a folder where a file was: then it is not kept
        let _ = blocking(move || kept.publish(&upload, &inside)).await;
        if let Some(listing) = &mut turn.listing {
            listing.files.insert(path.clone(), put);
        }
        Ok(listing::entry(path, &put))
    }

    /// A connection whose modules are there.
    async fn fit_link(&self, turn: &mut Turn) -> Result<Arc<Link>, SandboxError> {
        match self.ask(turn, &json!({"do": "probe"}), WORK_LIMIT).await? {
            Told::Answer(_) => self.link(turn).await,
            Told::Refused(_) | Told::Absent => Err(SandboxError::HeldBack),
        }
    }

    /// Puts in once more what callers have put in.
    pub(super) async fn bring_kept(&self, link: &Link) -> Result<(), SandboxError> {
        for entry in self.kept.list().await? {
            let Ok(path) = FilePath::new(entry.path) else { continue };
            let kept = Arc::clone(&self.kept);
            let inside = path.clone();
            let upload = Arc::new(blocking(move || kept.reopen(&inside)).await?);
            send(link, &upload, &path, &Condition::Always).await?;
        }
        Ok(())
    }

    pub(super) async fn get(
        &self,
        path: &FilePath,
        part: Part,
    ) -> Result<(FileEntry, ByteStream), SandboxError> {
        let mut turn = self.turn().await;
        let link = self.fit_link(&mut turn).await?;
        let (first, last, from_end) = match part {
            Part::Whole => (0, None, None),
            Part::From(first, last) => (first, last.map(|last| last.saturating_add(1)), None),
            Part::Last(count) => (0, None, Some(count)),
        };
        let slice = slice(&link, path, (first, last, from_end)).await?;
        let entry = listing::entry(path, &slice.stamp());
        let size = entry.size_bytes;
        let (first, length) = part.within(size).ok_or(SandboxError::NoSuchPart(size))?;
        if slice.first != first && length > 0 {
            return Err(CallError::BadAnswer("the part of a file that was asked for").into());
        }
        let content = slice.content(length.min(READ_BYTES))?;
        let stamp = slice.stamp();
        let at = first + content.len() as u64;
        let (sandbox, link) = (Weak::clone(&self.itself), Arc::downgrade(&link));
        let going = Going { sandbox, link, path: path.clone(), stamp, at, end: first + length };
        Ok((entry, going.content(content)))
    }

    pub(super) async fn remove(
        &self,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(), SandboxError> {
        let mut turn = self.turn().await;
        let told =
            json!({"do": "remove", "path": path.as_str(), "condition": told_condition(condition)});
        let removed = answer(path, self.ask(&mut turn, &told, WORK_LIMIT).await?).map(drop);
        if matches!(removed, Ok(()) | Err(SandboxError::NoSuchFile(_))) {
            let _ = self.kept.remove(path, &Condition::Always).await; // it may be its own code's
            if let Some(listing) = &mut turn.listing {
                listing.files.remove(path);
            }
        }
        removed
    }

    /// Keeps nothing that is not there any more.
    pub(super) async fn forget_all_but(&self, listing: &Listing) {
        for entry in self.kept.list().await.unwrap_or_default() {
            let Ok(path) = FilePath::new(entry.path) else { continue };
            if !listing.files.contains_key(&path) {
                let _ = self.kept.remove(&path, &Condition::Always).await;
            }
        }
    }
}

/// Sends a file in pieces, then has it put in place.
async fn send(
    link: &Link,
    upload: &Arc<Upload>,
    path: &FilePath,
    condition: &Condition,
) -> Result<Stamp, SandboxError> {
    let name = ExecutionId::new().to_string();
    let sent = async {
        let (mut digest, mut first) = (Sha256::new(), 0);
        loop {
            let upload = Arc::clone(upload);
            let piece = blocking(move || piece(&upload, first)).await?;
            digest.update(&piece);
            let is_last = piece.len() < PIECE_BYTES;
            let told = json!({
                "do": "write", "name": name, "first": first, "content": STANDARD.encode(&piece),
            });
            answer(path, link.ask(told, WORK_LIMIT).await?)?;
            first += piece.len() as u64;
            if is_last {
                break;
            }
        }
        let sha256: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let told = json!({
            "do": "put", "name": name, "path": path.as_str(), "sha256": sha256,
            "condition": told_condition(condition),
        });
        let Put { entry } = read_as(answer(path, link.ask(told, WORK_LIMIT).await?)?)?;
        if entry.0 != first {
            return Err(CallError::BadAnswer("the size of what was sent").into());
        }
        Ok(stamp(entry.0, entry.1))
    };
    let sent: Result<Stamp, SandboxError> = sent.await;
    if sent.is_err() && link.is_fit() {
        let _ = link.ask(json!({"do": "forget", "name": name}), WORK_LIMIT).await;
    }
    sent
}

fn piece(upload: &Upload, first: u64) -> Result<Vec<u8>, SandboxError> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut length = 0;
    while length < PIECE_BYTES {
        let read = upload.file.read_at(&mut piece[length..], first + length as u64);
        match read.map_err(own_doing)? {
            0 => break,
            count => length += count,
        }
    }
    piece.truncate(length);
    Ok(piece)
}

async fn slice(
    link: &Link,
    path: &FilePath,
    (first, last, from_end): (u64, Option<u64>, Option<u64>),
) -> Result<Slice, SandboxError> {
    let told = json!({
        "do": "read", "path": path.as_str(), "first": first, "last": last, "from_end": from_end,
        "most": READ_BYTES,
    });
    Ok(read_as(answer(path, link.ask(told, WORK_LIMIT).await?)?)?)
}

/// The answer, or a refusal as what it means for this file.
fn answer(path: &FilePath, told: Told) -> Result<Value, SandboxError> {
    let word = match told {
        Told::Answer(answer) => return Ok(answer),
        Told::Absent => return Err(SandboxError::HeldBack),
        Told::Refused(word) => word,
    };
    Err(match word.as_str() {
        "absent" => SandboxError::NoSuchFile(path.to_string()),
        "not_a_file" => SandboxError::NotAFile(path.to_string()),
        "condition" => SandboxError::ConditionFailed,
        "full" => SandboxError::Full,
        _ => SandboxError::HeldBack,
    })
}

fn told_condition(condition: &Condition) -> Value {
    match condition {
        Condition::Always => json!(["always", []]),
        Condition::Matches(tags) => json!(["matches", tags]),
        Condition::Differs(tags) => json!(["differs", tags]),
    }
}

/// Content on its way out, a slice at a time.
struct Going {
    sandbox: Weak<ServedSandbox>,
    /// The connection by which it has begun; after another one there is another file.
    link: Weak<Link>,
    path: FilePath,
    stamp: Stamp,
    at: u64,
    end: u64,
}

impl Going {
    fn content(self, first: Bytes) -> ByteStream {
        let rest = stream::unfold(Some(self), |going| async {
            let mut going = going.filter(|going| going.at < going.end)?;
            match going.next().await {
                Ok(piece) => Some((Ok(piece), Some(going))),
                Err(error) => Some((Err(std::io::Error::other(error)), None)),
            }
        });
        stream::iter((!first.is_empty()).then_some(Ok(first))).chain(rest).boxed()
    }

    async fn next(&mut self) -> Result<Bytes, SandboxError> {
        let (sandbox, link) = (self.sandbox.upgrade(), self.link.upgrade());
        let (Some(sandbox), Some(link)) = (sandbox, link) else { return Err(SandboxError::Lost) };
        let mut turn = sandbox.turn().await;
        if !Arc::ptr_eq(&link, &sandbox.link(&mut turn).await?) {
            return Err(SandboxError::Lost);
        }
        let next = slice(&link, &self.path, (self.at, Some(self.end), None)).await?;
        let piece = next.content((self.end - self.at).min(READ_BYTES))?;
        if next.stamp() != self.stamp || next.first != self.at || piece.is_empty() {
            return Err(CallError::BadAnswer("the same file as before").into());
        }
        self.at += piece.len() as u64;
        Ok(piece)
    }
}
