//! The loop: the model writes, the sandbox runs, until the model answers.

pub mod links;
mod prompt;
mod tool;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::event::{Event, OutputSink};
use crate::domain::execution::{Cell, Execution, ExecutionStatus, Failure, FailureKind, Language};
use crate::domain::file::FileEntry;
use crate::domain::id::{ExecutionId, RunId, SessionId};
use crate::domain::provider::ProviderInfo;
use crate::domain::run::{CodeExecResult, ResultPart, Usage};
use crate::domain::session::Session;
use crate::llm::{Conversation, LanguageModel, LlmError, Message, ToolCall, ToolResult, Turn};
use crate::sandbox::{Sandbox, SandboxError, execute_until};

/// Executions in a row that may fail before the model must answer.
const MAX_FAILURES: u32 = 5;
/// Equal calls in a row before the loop ends.
const MAX_EQUAL_CALLS: u32 = 4;
/// Calls of one message that are run.
const MAX_CALLS: usize = 16;
/// Bytes of rich results that the run keeps of all its executions.
const MAX_OUTPUTS_BYTES: usize = 64 << 20;
/// Turns without text and calls.
const MAX_EMPTY_TURNS: u32 = 3;
const NUDGE: &str = "Your last message was empty. Answer the question, or run code with the tool.";
const LAST_TURN: &str = "No more code can be run. Answer now with what you have found.";

/// A question and what it may take to answer it.
pub struct Task {
    /// The run that it belongs to.
    pub run_id: RunId,
    /// The session that the code runs in.
    pub session_id: SessionId,
    /// The question.
    pub message: String,
    /// What the caller tells the model besides.
    pub instructions: Option<String>,
    /// The files that lie in the sandbox.
    pub files: Vec<FileEntry>,
    /// Environment of each cell.
    pub env: BTreeMap<String, String>,
    /// Turns of the model.
    pub max_turns: u32,
    /// Time for a cell.
    pub cell_timeout: Duration,
    /// The most time that the model may ask for a cell.
    pub cell_timeout_max: Duration,
    /// When all must be over.
    pub deadline: Instant,
}

/// What came of a task, its history whole however it ended.
#[derive(Debug)]
pub struct Outcome {
    /// The answer; empty when there is none.
    pub text: String,
    /// What was executed, in order.
    pub results: Vec<CodeExecResult>,
    /// What the model counted.
    pub usage: Usage,
    /// How often it was asked.
    pub turns: u32,
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
    let conversation = Conversation {
        system: prompt::system(task, &place.session, &place.provider),
        messages: vec![Message::User(prompt::question(task))],
        tool: tool::definition(task, &place.session),
        must_answer: false,
    };
    let outcome = Outcome {
        text: String::new(),
        results: Vec::new(),
        usage: Usage::default(),
        turns: 0,
        end: End::Answered,
    };
    let mut work = Work {
        task,
        place,
        model,
        conversation,
        outcome,
        failures: 0,
        empty: 0,
        last_call: None,
        equal_calls: 0,
        outputs_bytes: 0,
    };
    let end = loop {
        match work.turn().await {
            Ok(None) => {}
            Ok(Some(text)) => {
                work.outcome.text = text;
                break End::Answered;
            }
            Err(end) => break end,
        }
    };
    Outcome { end, ..work.outcome }
}

struct Work<'a> {
    task: &'a Task,
    place: &'a Place<'a>,
    model: &'a dyn LanguageModel,
    conversation: Conversation,
    outcome: Outcome,
    failures: u32,
    empty: u32,
    last_call: Option<String>,
    equal_calls: u32,
    outputs_bytes: usize,
}

impl Work<'_> {
    /// One turn of the model and its cells. Some is the answer.
    async fn turn(&mut self) -> Result<Option<String>, End> {
        if self.outcome.turns >= self.task.max_turns {
            let message = format!("the model gave no answer within {} turns", self.task.max_turns);
            return Err(failed(FailureKind::MaxTurns, message));
        }
        let last = self.outcome.turns + 1 == self.task.max_turns || self.failures >= MAX_FAILURES;
        if last && self.outcome.turns > 0 && !self.conversation.must_answer {
            self.conversation.messages.push(Message::User(LAST_TURN.to_owned()));
        }
        self.conversation.must_answer = last && self.outcome.turns > 0;
        let turn = self.ask().await?;
        self.outcome.turns += 1;
        self.outcome.usage.add(turn.usage);
        if turn.calls.is_empty() && !turn.text.trim().is_empty() {
            return Ok(Some(turn.text));
        }
        if turn.calls.is_empty() {
            self.empty += 1;
            if self.empty >= MAX_EMPTY_TURNS {
                return Err(failed(
                    FailureKind::ModelEmpty,
                    "the model answered nothing".to_owned(),
                ));
            }
            self.conversation.messages.push(Message::User(NUDGE.to_owned()));
            return Ok(None);
        }
        self.answer_calls(turn).await?;
        Ok(None)
    }

    async fn ask(&self) -> Result<Turn, End> {
        tokio::select! {
            () = self.place.cancel.cancelled() => Err(End::Cancelled),
            () = tokio::time::sleep_until(self.task.deadline) => Err(End::TimedOut),
            turn = self.model.turn(&self.conversation) => turn.map_err(End::Model),
        }
    }

    /// Every call gets exactly one result, in order, whatever becomes of it.
    async fn answer_calls(&mut self, turn: Turn) -> Result<(), End> {
        let mut results = Vec::with_capacity(turn.calls.len());
        for (number, call) in turn.calls.iter().enumerate() {
            self.count_equal(call)?;
            let request = if number < MAX_CALLS {
                tool::read(call, turn.cut)
            } else {
                Err(format!("status: error\nnot run: a message may hold {MAX_CALLS} calls"))
            };
            let (text, images) = match request {
                Ok(request) => {
                    let execution = self.run(&call.id, request).await?;
                    let vision = self.model.vision();
                    (
                        tool::told(&execution),
                        if vision { tool::images(&execution) } else { Vec::new() },
                    )
                }
                Err(complaint) => {
                    self.failures += 1;
                    (complaint, Vec::new())
                }
            };
            results.push(ToolResult { call_id: call.id.clone(), text, images });
        }
        self.conversation.messages.push(Message::Assistant(turn.raw));
        self.conversation.messages.push(Message::Results(results));
        Ok(())
    }

    /// A model that sends the same call for ever gets no further.
    fn count_equal(&mut self, call: &ToolCall) -> Result<(), End> {
        let key = format!("{} {:?}", call.name, call.arguments);
        if self.last_call.as_ref() == Some(&key) {
            self.equal_calls += 1;
        } else {
            self.equal_calls = 1;
            self.last_call = Some(key);
        }
        if self.equal_calls < MAX_EQUAL_CALLS {
            return Ok(());
        }
        let message = format!("the model sent the same call {MAX_EQUAL_CALLS} times");
        Err(failed(FailureKind::MaxTurns, message))
    }

    async fn run(&mut self, call_id: &str, request: tool::Request) -> Result<Execution, End> {
        let left = self.task.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(End::TimedOut);
        }
        let asked = request.timeout.unwrap_or(self.task.cell_timeout);
        let cell = Cell {
            id: ExecutionId::new(),
            run_id: self.task.run_id,
            session_id: self.task.session_id,
            code: request.code,
            language: Language::Python,
            timeout: asked.min(self.task.cell_timeout_max).min(left),
            env: self.task.env.clone(),
            stdin: None,
        };
        let Place { sandbox, sink, cancel, .. } = self.place;
        sink.send(Event::ToolStarted { id: call_id.to_owned(), code: cell.code.clone() });
        let execution = execute_until(*sandbox, &cell, sink, cancel).await;
        let execution = execution.map_err(End::Sandbox)?;
        self.failures = match execution.status {
            ExecutionStatus::Success => 0,
            ExecutionStatus::Error | ExecutionStatus::Timeout | ExecutionStatus::Unknown => {
                self.failures + 1
            }
        };
        for file in &execution.files {
            sink.send(Event::File(file.clone()));
        }
        sink.send(Event::ToolCompleted { id: call_id.to_owned(), status: execution.status });
        let mut kept = execution.clone();
        self.outputs_bytes += tool::outputs_bytes(&kept);
        if self.outputs_bytes > MAX_OUTPUTS_BYTES {
            kept.outputs.clear();
            kept.truncated = true;
        }
        self.outcome.results.push(CodeExecResult {
            id: call_id.to_owned(),
            code: kept.code.clone(),
            output: vec![ResultPart::Text(kept.text.clone())],
            execution: kept,
        });
        if self.place.cancel.is_cancelled() { Err(End::Cancelled) } else { Ok(execution) }
    }
}

fn failed(kind: FailureKind, message: String) -> End {
    End::Failed(Failure { kind, retry_safe: false, message })
}
