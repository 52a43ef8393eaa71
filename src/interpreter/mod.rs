//! The loop: the model writes, the sandbox runs, until the model answers.

mod call;
mod feedback;
mod heads;
mod history;
pub mod links;
mod pictures;
mod pretended;
mod prompt;
mod work;
mod workbooks;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::event::OutputSink;
use crate::domain::execution::Failure;
use crate::domain::file::FilePath;
use crate::domain::id::{RunId, SessionId};
use crate::domain::provider::ProviderInfo;
use crate::domain::run::{CodeExecResult, Usage};
use crate::domain::session::Session;
use crate::llm::conversation::{Conversation, Message};
use crate::llm::{LanguageModel, LlmError};
use crate::sandbox::{Sandbox, SandboxError};
use history::History;
use work::Work;

/// How long the files are looked at before the model is asked without.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// A question and what it may take to answer it.
pub struct Task {
    /// The run that it belongs to.
    pub run_id: RunId,
    /// The session that the code runs in.
    pub session_id: SessionId,
    /// The question.
    pub message: String,
    /// What was said before, when the question goes on from there.
    pub earlier: Option<Earlier>,
    /// What the caller tells the model besides.
    pub instructions: Option<String>,
    /// The files that came with the question.
    pub attached: Vec<FilePath>,
    /// Environment of each cell.
    pub env: BTreeMap<String, String>,
    /// Turns of the model.
    pub max_turns: u32,
    /// The longest code of a cell, in bytes.
    pub max_code_bytes: u64,
    /// Tokens that the model may use; then it must answer.
    pub max_tokens: u64,
    /// Time for a cell.
    pub cell_timeout: Duration,
    /// The most time that the model may ask for a cell.
    pub cell_timeout_max: Duration,
    /// When all must be over.
    pub deadline: Instant,
}

/// A conversation that goes on.
#[derive(Debug, Clone, Default)]
pub struct Earlier {
    /// What was said.
    pub messages: Vec<Message>,
    /// True when it was said in this very sandbox.
    pub same_sandbox: bool,
}

/// What came of a task, its history whole however it ended.
#[derive(Debug)]
pub struct Outcome {
    /// The answer; empty when there is none.
    pub text: String,
    /// True when a limit on tokens cut it off.
    pub cut: bool,
    /// What was executed, in order.
    pub results: Vec<CodeExecResult>,
    /// What the model counted.
    pub usage: Usage,
    /// How often it was asked.
    pub turns: u32,
    /// All that was said, from the first question on.
    pub messages: Vec<Message>,
    /// How it ended.
    pub end: End,
}

/// How a task ended.
#[derive(Debug)]
pub enum End {
    /// With an answer.
    Answered,
    /// By a limit.
    Failed(Failure),
    /// By its time limit.
    TimedOut,
    /// By its caller.
    Cancelled,
    /// The model could not be asked.
    Model(LlmError),
    /// The sandbox could not run code any more.
    Sandbox(SandboxError),
}

/// Where the work is done.
pub struct Place<'a> {
    /// The session.
    pub session: Session,
    /// Its provider.
    pub provider: ProviderInfo,
    /// Its sandbox, under a lease.
    pub sandbox: &'a dyn Sandbox,
    /// Who listens.
    pub sink: OutputSink,
    /// Says that the work should end.
    pub cancel: &'a CancellationToken,
}

/// Works on the task until there is an answer or a limit is reached.
pub async fn interpret(task: &Task, place: &Place<'_>, model: &dyn LanguageModel) -> Outcome {
    let look = async {
        let files = place.sandbox.list_files().await.unwrap_or_default();
        let heads = heads::read(place.sandbox, &files, &task.attached).await;
        (files, heads)
    };
    let (files, mut heads) = tokio::time::timeout(LOOK_LIMIT, look).await.unwrap_or_default();
    workbooks::read(task, place, &files, &mut heads).await;
    let earlier = task.earlier.as_ref();
    let mut messages = earlier.map(|earlier| earlier.messages.clone()).unwrap_or_default();
    messages.push(Message::User(prompt::question(task, &files, &heads)));
    let conversation = Conversation {
        system: prompt::system(task, &place.session, &place.provider),
        messages,
        tool: call::tool(task, &place.session),
        must_answer: false,
    };
    let mut work = Work::new(task, place, model, History::new(conversation));
    let (text, end) = match work.answer().await {
        Ok(text) => (text, End::Answered),
        Err(end) => (String::new(), end),
    };
    work.outcome(text, end)
}
