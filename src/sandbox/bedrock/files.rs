//! Files in and out of a sandbox at AWS.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::error::BedrockError;
use super::machine::{Again, Machine, SLICE_BYTES, Told, decoded};
use super::sandbox::BedrockSandbox;
use crate::domain::file::{Condition, FileEntry, FilePath, Part};
use crate::domain::id::ExecutionId;
use crate::sandbox::listing::{self, Listing, Stamp};
use crate::sandbox::told::{Found, stamp};
use crate::sandbox::{ByteStream, SandboxError};

/// For a piece of work on files; to put a large one together takes its time.
const WORK_LIMIT: Duration = Duration::from_secs(60);
/// Without progress for so long an upload is given up.
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// What goes with its order, in one call.
const INLINE_BYTES: usize = 24 << 10;
/// The same on the way out.
const PRINTED_BYTES: u64 = 96 << 10;
/// How often what was refused, as its machine was gone, is asked of another one.
const MACHINES: u32 = 3;

/// A part of a file, as it is now.
#[derive(Deserialize)]
struct Slice {
    entry: (u64, i64),
    first: u64,
    length: u64,
    sha256: String,
    /// Itself, where it is short.
    content: Option<String>,
    /// Where it can be fetched, else.
    out: Option<String>,
}

/// A file as it was put in place.
#[derive(Deserialize)]
struct Put {
    entry: (u64, i64),
}

impl Slice {
    fn stamp(&self) -> Stamp {
        stamp(self.entry.0, self.entry.1)
    }
}

impl BedrockSandbox {
    /// All files.
    pub(super) async fn list(&self) -> Result<Vec<FileEntry>, SandboxError> {
        let listing = self.look(&*self.machine().await?).await;
        match listing {
            Err(BedrockError::Gone) => Ok(self.look(&*self.machine().await?).await?.entries()),
            listing => Ok(listing?.entries()),
        }
    }

    /// The files as a machine has them.
    pub(super) async fn look(&self, machine: &Machine) -> Result<Listing, BedrockError> {
        let told = json!({"do": "list"});
        let found: Found = machine.work(told, WORK_LIMIT, Again::Repeatable).await?.expected()?;
        found.listing().ok_or(BedrockError::BadAnswer("a listing"))
    }

    /// Writes a file: into our folder first, so that it is there whole or not at all.
    pub(super) async fn put(
        &self,
        path: &FilePath,
        content: ByteStream,
        max_bytes: u64,
        condition: &Condition,
    ) -> Result<FileEntry, SandboxError> {
        let machine = self.machine().await?;
        let name = format!("in-{}", ExecutionId::new());
        let mut sent = Coming { content, max_bytes, digest: Sha256::new(), length: 0, parts: 0 };
        let put = async {
            let inline = sent.send(&machine, &name).await?;
            let told = json!({
                "do": "put", "path": path.as_str(), "in": name, "parts": sent.parts, "sha256": sent.sha256(),
                "content": inline, "condition": told_condition(condition),
            });
            let _changing = self.changing.lock().await;
            let Put { entry } = done(path, machine.work(told, WORK_LIMIT, Again::WhenFree).await)?;
            let stamp = stamp(entry.0, entry.1);
            self.note_put(path, stamp);
            Ok(listing::entry(path, &stamp))
        };
        let put: Result<FileEntry, SandboxError> = put.await;
        if let Err(SandboxError::NotReady(_)) = put {
            self.forget_files(); // it may be there all the same
        }
        if put.is_err() && !machine.is_gone() {
            let parts: Vec<String> =
                (0..sent.parts).map(|part| format!("{name}.parts/{part}")).collect();
            if !parts.is_empty() {
                machine.forget(&parts.iter().map(String::as_str).collect::<Vec<_>>()).await;
            }
        }
        put
    }

    pub(super) async fn get(
        &self,
        path: &FilePath,
        part: Part,
    ) -> Result<(FileEntry, ByteStream), SandboxError> {
        let mut machines = 1;
        let (machine, slice) = loop {
            let machine = self.machine().await?;
            match slice(&machine, path, part, None).await {
                Err(BedrockError::Gone) if machines < MACHINES => machines += 1,
                slice => break (machine, done(path, slice)?),
            }
        };
        let entry = listing::entry(path, &slice.stamp());
        let size = entry.size_bytes;
        let (first, length) = part.within(size).ok_or(SandboxError::NoSuchPart(size))?;
        if slice.first != first && length > 0 {
            return Err(BedrockError::BadAnswer("another part of a file").into());
        }
        let (stamp, drop) = (slice.stamp(), slice.out.clone());
        let first_piece = fetched(&machine, slice, length).await?;
        let coming =
            Going { machine, path: path.clone(), stamp, at: first, end: first + length, drop };
        Ok((entry, coming.content(first_piece)))
    }

    pub(super) async fn remove(
        &self,
        path: &FilePath,
        condition: &Condition,
    ) -> Result<(), SandboxError> {
        let machine = self.machine().await?;
        let told =
            json!({"do": "remove", "path": path.as_str(), "condition": told_condition(condition)});
        let _changing = self.changing.lock().await;
        let removed = machine.work::<Value>(told, WORK_LIMIT, Again::WhenFree).await;
        let removed = done(path, removed).map(drop);
        match &removed {
            Ok(()) => self.note_removed(path),
            Err(SandboxError::NotReady(_)) => self.forget_files(), // it may be gone all the same
            Err(_) => {}
        }
        removed
    }
}

/// The answer, or a refusal as what it means for this file.
fn done<T>(path: &FilePath, done: Result<Told<T>, BedrockError>) -> Result<T, SandboxError> {
    match done.map_err(for_a_file)? {
        Told::Refused(word) => Err(match word.as_str() {
            "absent" => SandboxError::NoSuchFile(path.to_string()),
            "not_a_file" => SandboxError::NotAFile(path.to_string()),
            "held_back" => SandboxError::HeldBack,
            "condition" => SandboxError::ConditionFailed,
            "full" => SandboxError::Full,
            _ => BedrockError::BadAnswer("a refusal of ours").into(),
        }),
        Told::Answer(answer) => Ok(answer),
    }
}

/// A machine that is gone costs a call for a file, and not the session: the next call gets another one.
fn for_a_file(error: BedrockError) -> SandboxError {
    match error {
        BedrockError::Gone => SandboxError::NotReady(Box::new(error)),
        error => error.into(),
    }
}

fn told_condition(condition: &Condition) -> Value {
    match condition {
        Condition::Always => json!(["always", []]),
        Condition::Matches(tags) => json!(["matches", tags]),
        Condition::Differs(tags) => json!(["differs", tags]),
    }
}

/// Content on its way in.
struct Coming {
    content: ByteStream,
    max_bytes: u64,
    digest: Sha256,
    length: u64,
    parts: u64,
}

impl Coming {
    /// Sends all of it, in slices. What is so short that it can go with its order is given back.
    async fn send(
        &mut self,
        machine: &Machine,
        name: &str,
    ) -> Result<Option<String>, SandboxError> {
        loop {
            let (slice, is_last) = self.slice().await?;
            self.digest.update(&slice);
            if is_last && self.parts == 0 && slice.len() <= INLINE_BYTES {
                return Ok(Some(STANDARD.encode(slice)));
            }
            if !slice.is_empty() {
                let part = format!("{name}.parts/{}", self.parts);
                machine.bring(&part, slice).await.map_err(for_a_file)?;
                self.parts += 1;
            }
            if is_last {
                return Ok(None);
            }
        }
    }

    /// The next slice, and whether it is the last one.
    async fn slice(&mut self) -> Result<(Bytes, bool), SandboxError> {
        let mut slice = BytesMut::new();
        while (slice.len() as u64) < SLICE_BYTES {
            let next = timeout(STALL_LIMIT, self.content.next()).await;
            let Some(piece) = next.map_err(|_| BedrockError::TooSlow)? else {
                return Ok((slice.freeze(), true));
            };
            let piece = piece.map_err(SandboxError::ContentCut)?;
            self.length += piece.len() as u64;
            if self.length > self.max_bytes {
                return Err(SandboxError::FileTooLarge(self.max_bytes));
            }
            slice.extend_from_slice(&piece);
        }
        Ok((slice.freeze(), false))
    }

    fn sha256(&self) -> String {
        self.digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What of a file comes after a slice.
struct Rest<'a> {
    first: u64,
    end: u64,
    /// Where the slice before was to be fetched.
    drop: Option<&'a str>,
}

/// Asks for a slice of a file: of a part of it, or what comes from there on.
async fn slice(
    machine: &Machine,
    path: &FilePath,
    part: Part,
    rest: Option<Rest<'_>>,
) -> Result<Told<Slice>, BedrockError> {
    let drop = rest.as_ref().and_then(|rest| rest.drop);
    let (first, last, from_end) = match (rest, part) {
        (Some(Rest { first, end, .. }), _) => (first, Some(end), None),
        (None, Part::Whole) => (0, None, None),
        (None, Part::From(first, last)) => (first, last.map(|last| last.saturating_add(1)), None),
        (None, Part::Last(count)) => (0, None, Some(count)),
    };
    let told = json!({
        "do": "slice", "path": path.as_str(), "first": first, "last": last, "from_end": from_end,
        "most": SLICE_BYTES, "inline": PRINTED_BYTES, "out": format!("out-{}", ExecutionId::new()), "drop": drop,
    });
    machine.work(told, WORK_LIMIT, Again::Repeatable).await
}

/// The content of a slice, no more than was asked for.
async fn fetched(machine: &Machine, slice: Slice, most: u64) -> Result<Bytes, BedrockError> {
    let most = most.min(SLICE_BYTES);
    if slice.length > most {
        return Err(BedrockError::BadAnswer("more of a file than was asked for"));
    }
    let content = match slice {
        Slice { content: Some(content), .. } => decoded(&content, most)?,
        Slice { out: Some(out), length, sha256, .. } => {
            machine.fetch(&out, length, &sha256).await?
        }
        Slice { .. } => return Err(BedrockError::BadAnswer("a part of a file without content")),
    };
    Ok(content.into())
}

/// Content on its way out, a slice at a time.
struct Going {
    machine: Arc<Machine>,
    path: FilePath,
    stamp: Stamp,
    at: u64,
    end: u64,
    /// Where the last slice was to be fetched.
    drop: Option<String>,
}

impl Going {
    fn content(mut self, first: Bytes) -> ByteStream {
        self.at += first.len() as u64;
        let rest = stream::unfold(Some(self), |going| async {
            let mut going = going.filter(|going| going.at < going.end)?;
            match going.next().await {
                Ok(piece) => Some((Ok(piece), Some(going))),
                Err(error) => Some((Err(std::io::Error::other(error)), None)),
            }
        });
        stream::iter((!first.is_empty()).then_some(Ok(first))).chain(rest).boxed()
    }

    async fn next(&mut self) -> Result<Bytes, BedrockError> {
        let rest = Rest { first: self.at, end: self.end, drop: self.drop.as_deref() };
        let next = slice(&self.machine, &self.path, Part::Whole, Some(rest)).await?.expected()?;
        if next.stamp() != self.stamp || next.first != self.at || next.length == 0 {
            return Err(BedrockError::BadAnswer("a file that changed while it was read"));
        }
        self.drop.clone_from(&next.out);
        let piece = fetched(&self.machine, next, self.end - self.at).await?;
        self.at += piece.len() as u64;
        Ok(piece)
    }
}
