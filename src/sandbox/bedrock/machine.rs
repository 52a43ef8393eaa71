//! One session of AWS: a machine with an interpreter and a disk, until its time is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_bedrockagentcore::primitives::Blob;
use aws_sdk_bedrockagentcore::types::{
    InputContentBlock, ProgrammingLanguage, ToolArguments, ToolName,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, timeout};

use super::client::{Client, Started};
use super::error::BedrockError;
use super::programs::{self, ASIDE, Answer, Here, Program, answer};
use super::wire::Said;
use crate::domain::coded::chain;
use crate::domain::reason::Reason;
use crate::domain::weight::weigh;

/// For a piece of work of ours.
const TOOL_LIMIT: Duration = Duration::from_secs(30);
/// For a slice of a file on its way.
const SLICE_LIMIT: Duration = Duration::from_secs(60);
/// For a look whether it is there at all.
const LIVES_LIMIT: Duration = Duration::from_secs(5);
/// For a long answer.
const WHOLE_LIMIT: Duration = Duration::from_secs(45);
/// For the word that a cell is to stop.
const BRING_LIMIT: Duration = Duration::from_secs(2);
/// A kernel takes its time to begin: some interpreters load half of their packages.
const SET_UP_LIMIT: Duration = Duration::from_secs(30);
/// Work that may be done twice is tried so often.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// How long work waits for its turn, where the service does one thing at a time in a session.
const BUSY_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of an answer that is fetched from a file.
const MAX_ANSWER_BYTES: u64 = 96 << 20;
/// What an answer's values may take once they are parsed.
const MAX_PARSED_BYTES: usize = 192 << 20;
/// Less than what a store can read again once it is wrapped.
const MAX_DEPTH: usize = 60;
/// The most that is asked for at once.
pub(super) const SLICE_BYTES: u64 = 8 << 20;
/// The same, where it must be printed.
const PRINTED_BYTES: u64 = 1 << 20;

/// A session of AWS that was made ready.
pub(super) struct Machine {
    client: Arc<Client>,
    pub(super) id: String,
    pub(super) ends_at: OffsetDateTime,
    pub(super) here: Here,
    /// AWS has said so.
    is_gone: AtomicBool,
    /// Its tool for reading files does not give them as they are.
    misreads: AtomicBool,
}

/// What stands in a file because it was too long to be printed.
#[derive(Deserialize)]
struct Elsewhere {
    aside: String,
    bytes: u64,
    sha256: String,
}

/// What is done about a call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Nothing.
    Never,
    /// It waits for its turn.
    WhenFree,
    /// The same, and it is made again: twice is no more than once.
    Repeatable,
}

#[derive(Deserialize)]
struct Refused {
    refused: String,
}

#[derive(Deserialize)]
struct Content {
    content: String,
}

/// An answer of ours, or why there is none.
#[derive(Debug)]
pub(super) enum Told<T> {
    Answer(T),
    /// A word of ours: it was not done.
    Refused(String),
}

impl Machine {
    /// Makes a session ready for cells.
    pub(super) async fn ready(
        client: Arc<Client>,
        started: Started,
        env: &BTreeMap<String, String>,
    ) -> Result<Self, BedrockError> {
        let program = programs::set_up(env, None);
        let said = execute(&client, &started.id, &program, SET_UP_LIMIT).await?;
        let told = answer(said.printed()?, &program.mark);
        let here =
            told.and_then(|told| programs::here(told.line)).ok_or(BedrockError::NoInterpreter)?;
        Ok(Self::found(client, started, here))
    }

    /// One that was made ready before.
    pub(super) fn found(client: Arc<Client>, started: Started, here: Here) -> Self {
        let Started { id, ends_at } = started;
        let (is_gone, misreads) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { client, id, ends_at, here, is_gone, misreads }
    }

    /// Makes its interpreter a kernel once more, with nothing of before in it.
    pub(super) async fn set_up(&self, env: &BTreeMap<String, String>) -> Result<(), BedrockError> {
        let program = programs::set_up(env, Some(&self.here));
        let said = self.noticed(execute(&self.client, &self.id, &program, SET_UP_LIMIT).await)?;
        let told = answer(said.printed()?, &program.mark);
        match told.and_then(|told| programs::here(told.line)) {
            Some(here) if here.is_at(&self.here) => Ok(()),
            _ => Err(BedrockError::NoInterpreter),
        }
    }

    /// Hands code over, once. What comes of it must come within the limit.
    pub(super) async fn execute(
        &self,
        program: &Program,
        limit: Duration,
    ) -> Result<Said, BedrockError> {
        self.noticed(execute(&self.client, &self.id, program, limit).await)
    }

    /// Lets a program of ours do something beside the kernel.
    pub(super) async fn work<T: DeserializeOwned>(
        &self,
        told: Value,
        limit: Duration,
        again: Again,
    ) -> Result<Told<T>, BedrockError> {
        let (said, mark) = self.say(told, limit, again).await?;
        // from here on it was done, whatever is said
        let fetched = async {
            let told = answer(said.printed()?, &mark);
            let told = told.ok_or(BedrockError::BadAnswer("the answer of a tool"))?;
            told_of(&self.whole(told).await?)
        };
        fetched.await.map_err(|error| BedrockError::NotFetched(Box::new(error)))
    }

    /// What a program of ours says of its work, and the mark that its answer bears.
    async fn say(
        &self,
        told: Value,
        limit: Duration,
        again: Again,
    ) -> Result<(Said, String), BedrockError> {
        let program = programs::of_tool(&self.here, told);
        if let Some((name, text)) = &program.arguments {
            let brought = self.bring(name, Bytes::copy_from_slice(text.as_bytes()));
            let brought = timeout(limit.min(TOOL_LIMIT), brought).await;
            let brought = brought.unwrap_or(Err(BedrockError::TooSlow));
            brought.map_err(|error| BedrockError::NotBrought(Box::new(error)))?;
        }
        let arguments = ToolArguments::builder().command(&program.text).build();
        let said = self.invoke(ToolName::ExecuteCommand, arguments, limit, again).await?;
        Ok((said, program.mark))
    }

    /// An answer as it was meant: a long one stands in a file too, as what is printed may be cut.
    pub(super) async fn whole(&self, told: Answer<'_>) -> Result<String, BedrockError> {
        timeout(WHOLE_LIMIT, self.gathered(told)).await.unwrap_or(Err(BedrockError::TooSlow))
    }

    async fn gathered(&self, told: Answer<'_>) -> Result<String, BedrockError> {
        let Ok(Elsewhere { aside, bytes, sha256 }) = serde_json::from_str(told.line) else {
            return Ok(told.line.to_owned());
        };
        if told.next.len() as u64 == bytes {
            return Ok(told.next.to_owned());
        }
        let is_ours = aside.starts_with("answer-")
            && aside.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_ours || bytes > MAX_ANSWER_BYTES {
            return Err(BedrockError::BadAnswer("where an answer is"));
        }
        let content = self.fetch(&aside, bytes, &sha256).await?;
        String::from_utf8(content).map_err(|_| BedrockError::BadAnswer("an answer in a file"))
    }

    /// A file that one of our programs has put into our folder.
    pub(super) async fn fetch(
        &self,
        name: &str,
        length: u64,
        sha256: &str,
    ) -> Result<Vec<u8>, BedrockError> {
        let is_whole = |content: &[u8]| {
            let digest = Sha256::digest(content);
            digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>() == sha256
        };
        if length <= SLICE_BYTES
            && let Some(content) = self.read(name).await?
        {
            if is_whole(&content) {
                return Ok(content);
            }
            self.misreads.store(true, Ordering::Relaxed);
        }
        let mut content = Vec::new();
        while (content.len() as u64) < length {
            let first = content.len() as u64;
            let piece = self.printed(name, first, length - first).await?;
            if piece.is_empty() {
                break;
            }
            content.extend_from_slice(&piece);
        }
        if is_whole(&content) {
            return Ok(content);
        }
        Err(BedrockError::BadAnswer("a part of a file did not arrive whole"))
    }

    /// A file of ours by the service's own tool; None where that refuses.
    async fn read(&self, name: &str) -> Result<Option<Vec<u8>>, BedrockError> {
        if self.misreads.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let arguments = ToolArguments::builder().paths(format!("{ASIDE}/{name}")).build();
        let read = self.invoke(ToolName::ReadFiles, arguments, SLICE_LIMIT, Again::Repeatable);
        match read.await {
            Ok(said) => Ok(said.resource),
            Err(BedrockError::Tool(_)) => {
                self.misreads.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn printed(&self, name: &str, first: u64, left: u64) -> Result<Vec<u8>, BedrockError> {
        let length = left.min(PRINTED_BYTES);
        let told = json!({"do": "fetch", "name": name, "first": first, "length": length});
        let (said, mark) = self.say(told, TOOL_LIMIT, Again::Repeatable).await?;
        let told = answer(said.printed()?, &mark);
        let told = told.ok_or(BedrockError::BadAnswer("the answer of a tool"))?;
        let Content { content } = parsed(told.line)?;
        decoded(&content, length)
    }

    /// Ends commands that nobody waits for any more.
    pub(super) async fn end_left(&self) {
        let ended =
            self.work::<Value>(json!({"do": "end_left"}), TOOL_LIMIT, Again::WhenFree).await;
        if let Err(error) = ended {
            let cause = chain(&error);
            tracing::warn!(
                error = cause,
                sandbox.id = self.id,
                "commands may have been left running"
            );
        }
    }

    /// Puts a file into our folder. Twice is no more than once.
    pub(super) async fn bring(&self, name: &str, content: Bytes) -> Result<(), BedrockError> {
        let block = InputContentBlock::builder()
            .path(format!("{ASIDE}/{name}"))
            .blob(Blob::new(content))
            .build();
        let block = block.map_err(|error| BedrockError::NotSent(Box::new(error)))?;
        let arguments = ToolArguments::builder().content(block).build();
        let brought = self.invoke(ToolName::WriteFiles, arguments, SLICE_LIMIT, Again::Repeatable);
        brought.await.map(drop)
    }

    /// Takes files out of our folder, whether they are there or not.
    pub(super) async fn forget(&self, names: &[&str]) {
        let told = json!({"do": "forget", "names": names});
        if let Err(error) = self.say(told, TOOL_LIMIT, Again::WhenFree).await {
            let cause = chain(&error);
            tracing::debug!(error = cause, sandbox.id = self.id, "a file of ours was left behind");
        }
    }

    async fn invoke(
        &self,
        tool: ToolName,
        arguments: ToolArguments,
        limit: Duration,
        again: Again,
    ) -> Result<Said, BedrockError> {
        let (mut tries, busy_until) = (1, Instant::now() + BUSY_LIMIT);
        loop {
            let said = self.client.invoke(&self.id, tool.clone(), arguments.clone(), limit).await;
            let said = said.and_then(|said| said.printed().map(drop).map(|()| said));
            match &said {
                Err(BedrockError::Busy(_))
                    if again != Again::Never && Instant::now() < busy_until => {}
                Err(error) if again == Again::Repeatable && error.is_passing() && tries < TRIES => {
                    tries += 1;
                }
                _ => return self.noticed(said),
            }
            sleep(PAUSE.mul_f64(0.5 + fastrand::f64())).await;
        }
    }

    /// That it is gone is remembered.
    fn noticed<T>(&self, done: Result<T, BedrockError>) -> Result<T, BedrockError> {
        if matches!(done, Err(BedrockError::Gone)) {
            self.is_gone.store(true, Ordering::SeqCst);
        }
        done
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }

    /// How long it lives yet.
    pub(super) fn left(&self) -> Duration {
        Duration::try_from(self.ends_at - OffsetDateTime::now_utc()).unwrap_or_default()
    }

    /// Whether its kernel listens. One that is told to stop by a file of this name stops what it runs.
    /// An error when nothing can be known now.
    pub(super) async fn listens(
        &self,
        stop: Option<&str>,
        limit: Duration,
    ) -> Result<Listens, BedrockError> {
        let deadline = Instant::now() + limit;
        if let Some(name) = stop {
            let _ = timeout(BRING_LIMIT, self.bring(name, Bytes::new())).await;
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let program = programs::of_kernel(json!({"do": "probe"}));
            let probed = self.execute(&program, left).await;
            let told = probed.as_ref().ok().and_then(|said| said.printed().ok());
            let told = told.and_then(|printed| answer(printed, &program.mark));
            match told.and_then(|told| serde_json::from_str::<Probed>(told.line).ok()) {
                Some(Probed { absent: true, .. }) => return Ok(Listens::Anew),
                Some(Probed { running: None, .. }) => return Ok(Listens::Yes),
                Some(_) => {} // another call reached it while a cell runs
                None => match probed.map(|said| said.printed().map(drop)) {
                    Err(BedrockError::Gone) => return Ok(Listens::Gone),
                    // it says itself that it is of no use
                    Ok(Err(BedrockError::Tool(_))) => return Ok(Listens::No),
                    Ok(_) | Err(_) => {}
                },
            }
            if Instant::now() + PAUSE >= deadline {
                // where AWS does not answer either, that says nothing of the kernel
                let lives = timeout(LIVES_LIMIT, self.client.lives(&self.id)).await;
                let lives = lives.unwrap_or(Err(BedrockError::TooSlow))?;
                return Ok(if lives { Listens::No } else { Listens::Gone });
            }
            sleep(PAUSE).await;
        }
    }
}

/// What a kernel says of itself.
#[derive(Deserialize)]
struct Probed {
    #[serde(default)]
    absent: bool,
    #[serde(default)]
    running: Option<String>,
}

/// What became of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listens {
    Yes,
    /// It is a new one, and knows nothing of ours.
    Anew,
    No,
    /// The whole machine is gone.
    Gone,
}

async fn execute(
    client: &Client,
    id: &str,
    program: &Program,
    limit: Duration,
) -> Result<Said, BedrockError> {
    let arguments =
        ToolArguments::builder().code(&program.text).language(ProgrammingLanguage::Python).build();
    client.invoke(id, ToolName::ExecuteCode, arguments, limit).await
}

/// An answer, or the word of ours that it was not done.
pub(super) fn told_of<T: DeserializeOwned>(text: &str) -> Result<Told<T>, BedrockError> {
    Ok(match serde_json::from_str(text) {
        Ok(Refused { refused }) => Told::Refused(refused),
        Err(_) => Told::Answer(parsed(text)?),
    })
}

/// Hostile JSON, read within bounds.
pub(super) fn parsed<T: DeserializeOwned>(text: &str) -> Result<T, BedrockError> {
    let weight = weigh(text.as_bytes());
    if weight.parsed_bytes > MAX_PARSED_BYTES || weight.depth > MAX_DEPTH {
        return Err(BedrockError::BadAnswer("too many values"));
    }
    serde_json::from_str(text).map_err(|_| BedrockError::BadAnswer("other values"))
}

/// Bytes that came as base64, no more than were asked for.
pub(super) fn decoded(text: &str, most: u64) -> Result<Vec<u8>, BedrockError> {
    let content = STANDARD.decode(text).map_err(|_| BedrockError::BadAnswer("no base64"))?;
    if content.len() as u64 > most {
        return Err(BedrockError::BadAnswer("more than was asked for"));
    }
    Ok(content)
}

impl<T> Told<T> {
    /// The answer, where a refusal would be a fault.
    pub(super) fn expected(self) -> Result<T, BedrockError> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Refused(word) if word == "full" => Err(BedrockError::Full),
            Self::Refused(word) => Err(BedrockError::Tool(Reason::new(&word))),
        }
    }
}
