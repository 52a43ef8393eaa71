//! One task at work: turns of the model, their calls, the limits.

use std::time::Duration;

use tokio::time::Instant;

use super::history::History;
use super::{End, Outcome, Place, Task, call, feedback, pictures, pretended};
use crate::domain::event::Event;
use crate::domain::execution::{Cell, Execution, ExecutionStatus, Failure, FailureKind, Language};
use crate::domain::id::ExecutionId;
use crate::domain::run::{CodeExecResult, ResultPart, Usage};
use crate::llm::conversation::{Said, ToolCall, ToolResult};
use crate::llm::{LanguageModel, LlmError, Turn};
use crate::sandbox::execute_until;

/// Calls in a row that may fail before the model must answer.
const MAX_FAILURES: u32 = 5;
/// Equal calls in a row before the model must answer.
const MAX_EQUAL_CALLS: u32 = 3;
/// Calls of one message that are run.
const MAX_CALLS: usize = 16;
/// Bytes of texts and rich results that the run keeps of all its executions.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Bytes of a text that are kept beyond that.
const SHORT_BYTES: usize = 1024;
/// Turns in a row without text and calls.
const MAX_EMPTY_TURNS: u32 = 3;
/// What the answer gets of the whole time: a tenth, and no more than this.
const ANSWER_TIME: Duration = Duration::from_secs(15);
const NUDGE: &str = "Your last message was empty. Answer the question, or run code with the tool.";

/// A task at work.
pub(super) struct Work<'a> {
    task: &'a Task,
    place: &'a Place<'a>,
    model: &'a dyn LanguageModel,
    history: History,
    results: Vec<CodeExecResult>,
    usage: Usage,
    turns: u32,
    failures: u32,
    empty: u32,
    last_call: Option<String>,
    equal_calls: u32,
    kept_bytes: usize,
    /// The last message was cut off in its text.
    cut: bool,
    /// When no more code is run.
    code_until: Instant,
}

/// Why the model must answer now.
#[derive(Debug, Clone, Copy)]
enum Limit {
    Turns,
    Failures,
    EqualCalls,
    Tokens,
    Time,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        task: &'a Task,
        place: &'a Place<'a>,
        model: &'a dyn LanguageModel,
        history: History,
    ) -> Self {
        let whole = task.deadline.saturating_duration_since(Instant::now());
        Self {
            task,
            place,
            model,
            history,
            results: Vec::new(),
            usage: Usage::default(),
            turns: 0,
            failures: 0,
            empty: 0,
            last_call: None,
            equal_calls: 0,
            kept_bytes: 0,
            cut: false,
            code_until: task.deadline - (whole / 10).min(ANSWER_TIME),
        }
    }

    /// Turn after turn, to the answer.
    pub(super) async fn answer(&mut self) -> Result<String, End> {
        loop {
            if let Some(answer) = self.turn().await? {
                return Ok(answer);
            }
        }
    }

    pub(super) fn outcome(self, text: String, end: End) -> Outcome {
        let Self { results, usage, turns, history, cut, .. } = self;
        Outcome { text, cut, results, usage, turns, messages: history.into_messages(), end }
    }

    /// One turn of the model and its cells. Some is the answer.
    async fn turn(&mut self) -> Result<Option<String>, End> {
        if self.turns >= self.task.max_turns {
            return Err(self.unanswered(Limit::Turns));
        }
        if self.history.is_too_large() {
            let message = "the conversation has become larger than one may be".to_owned();
            return Err(failed(FailureKind::Limit, message));
        }
        let limit = self.limit();
        let Turn { said, cut, usage } = self.ask(limit).await?;
        self.turns += 1;
        self.usage.add(usage);
        let said = pretended::read(said);
        if said.calls.is_empty() && said.text.trim().is_empty() {
            self.empty += 1;
            return if self.empty < MAX_EMPTY_TURNS { Ok(None) } else { Err(nothing(cut)) };
        }
        self.empty = 0;
        self.cut = cut && said.calls.is_empty();
        match limit {
            // calls beside an answer are not run any more
            Some(_) if !said.text.trim().is_empty() => Ok(Some(self.answered(Said {
                raw: said.raw.filter(|_| said.calls.is_empty()),
                calls: Vec::new(),
                ..said
            }))),
            None if said.calls.is_empty() => Ok(Some(self.answered(said))),
            Some(limit) => {
                let results = said.calls.iter().map(|call| feedback::refused(call, limit.told()));
                let results = results.collect();
                self.history.add_calls(said, results);
                Err(self.unanswered(limit))
            }
            None => self.answer_calls(said, cut).await.map(|()| None),
        }
    }

    fn answered(&mut self, said: Said) -> String {
        let text = said.text.clone();
        self.history.add_answer(said);
        text
    }

    /// The limit that is reached: one turn is left for the answer.
    fn limit(&self) -> Option<Limit> {
        let tokens = self.usage.input_tokens.saturating_add(self.usage.output_tokens);
        if tokens >= self.task.max_tokens {
            Some(Limit::Tokens)
        } else if Instant::now() >= self.code_until {
            Some(Limit::Time)
        } else if self.failures >= MAX_FAILURES {
            Some(Limit::Failures)
        } else if self.equal_calls >= MAX_EQUAL_CALLS {
            Some(Limit::EqualCalls)
        } else if self.turns > 0 && self.turns + 1 == self.task.max_turns {
            Some(Limit::Turns)
        } else {
            None
        }
    }

    fn unanswered(&self, limit: Limit) -> End {
        let (kind, message) = match limit {
            Limit::Turns => (
                FailureKind::MaxTurns,
                format!("the model gave no answer within {} turns", self.task.max_turns),
            ),
            Limit::EqualCalls => (
                FailureKind::MaxTurns,
                format!("the model sent the same call {MAX_EQUAL_CALLS} times and gave no answer"),
            ),
            Limit::Failures => (
                FailureKind::Limit,
                format!("the model gave no answer after {MAX_FAILURES} failed calls in a row"),
            ),
            Limit::Tokens => (
                FailureKind::Budget,
                format!("the {} tokens for the whole run are used up", self.task.max_tokens),
            ),
            Limit::Time => return End::TimedOut,
        };
        failed(kind, message)
    }

    async fn ask(&mut self, limit: Option<Limit>) -> Result<Turn, End> {
        let note = limit.map(Limit::note).or((self.empty > 0).then(|| NUDGE.to_owned()));
        self.history.note(note.as_deref(), limit.is_some());
        let (model, sink, deadline) = (self.model, &self.place.sink, self.task.deadline);
        let history = &mut self.history;
        let asked = async {
            match model.turn(history.conversation(), sink).await {
                // once: what is shortened already gets no shorter
                Err(LlmError::ContextTooLong) if history.shorten() => {
                    model.turn(history.conversation(), sink).await
                }
                turn => turn,
            }
        };
        let turn = tokio::select! {
            () = self.place.cancel.cancelled() => Err(End::Cancelled),
            () = tokio::time::sleep_until(deadline) => Err(End::TimedOut),
            turn = asked => turn.map_err(End::Model),
        };
        self.history.forget_note();
        turn
    }

    /// Every call gets exactly one result, in order, whatever becomes of it.
    async fn answer_calls(&mut self, said: Said, cut: bool) -> Result<(), End> {
        let mut results = Vec::with_capacity(said.calls.len());
        let mut ended = None;
        for (number, call) in said.calls.iter().enumerate() {
            if ended.is_some() {
                results.push(feedback::refused(call, "the run ended before"));
                continue;
            }
            self.count_equal(call);
            let result = match self.limit_within(number) {
                Some(why) => Ok(feedback::refused(call, &why)),
                None => self.answer_call(call, cut).await,
            };
            results.push(result.unwrap_or_else(|end| {
                ended = Some(end);
                feedback::refused(call, "the run ended before")
            }));
            if ended.is_none() && self.place.cancel.is_cancelled() {
                ended = Some(End::Cancelled);
            }
        }
        self.history.add_calls(said, results);
        ended.map_or(Ok(()), Err)
    }

    /// Why a call of a message is not run any more.
    fn limit_within(&self, number: usize) -> Option<String> {
        if number >= MAX_CALLS {
            return Some(format!("a message may hold {MAX_CALLS} calls"));
        }
        let failures = (self.failures >= MAX_FAILURES).then_some(Limit::Failures);
        let equal = (self.equal_calls > MAX_EQUAL_CALLS).then_some(Limit::EqualCalls);
        failures.or(equal).map(|limit| limit.told().to_owned())
    }

    async fn answer_call(&mut self, call: &ToolCall, cut: bool) -> Result<ToolResult, End> {
        let request = match call::read(call, cut) {
            Ok(request) => request,
            Err(complaint) => {
                self.failures += 1;
                return Ok(feedback::complaint(call, complaint));
            }
        };
        if request.code.len() as u64 > self.task.max_code_bytes {
            self.failures += 1;
            let why = format!("the code is longer than {} bytes", self.task.max_code_bytes);
            return Ok(feedback::refused(call, &why));
        }
        let left = self.code_until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(feedback::refused(call, "the time for code is used up"));
        }
        let asked = request.timeout.unwrap_or(self.task.cell_timeout);
        let timeout = asked.min(self.task.cell_timeout_max).min(left);
        let execution = self.run(&call.id, request.code, timeout).await?;
        let there = if feedback::lacks_a_file(&execution) {
            self.place.sandbox.list_files().await.ok()
        } else {
            None
        };
        let pictures = pictures::of(&execution, self.model.vision());
        let pictures = tokio::time::timeout_at(self.task.deadline, pictures).await;
        let (images, notes) = pictures.unwrap_or_default();
        Ok(ToolResult {
            call_id: call.id.clone(),
            text: feedback::told(&execution, &notes, there.as_deref()),
            images,
            is_error: execution.status != ExecutionStatus::Success,
        })
    }

    /// A model that sends the same call for ever gets no further.
    fn count_equal(&mut self, call: &ToolCall) {
        let key = format!("{} {:?}", call.name, call.arguments);
        if self.last_call.as_ref() == Some(&key) {
            self.equal_calls += 1;
        } else {
            self.equal_calls = 1;
            self.last_call = Some(key);
        }
    }

    async fn run(
        &mut self,
        call_id: &str,
        code: String,
        timeout: Duration,
    ) -> Result<Execution, End> {
        let cell = Cell {
            id: ExecutionId::new(),
            run_id: self.task.run_id,
            session_id: self.task.session_id,
            code,
            language: Language::Python,
            timeout,
            env: self.task.env.clone(),
            stdin: None,
        };
        let Place { sandbox, sink, cancel, .. } = self.place;
        // some models number their calls anew in each message
        let is_taken = self.results.iter().any(|result| result.id == call_id);
        let number = self.results.len();
        let id = if is_taken { format!("{call_id}_{number}") } else { call_id.to_owned() };
        sink.send(Event::ToolStarted { id: id.clone(), code: cell.code.clone() });
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
        sink.send(Event::ToolCompleted {
            id: id.clone(),
            status: execution.status,
            error: execution.error.clone(),
        });
        self.keep(id, &execution);
        Ok(execution)
    }

    /// The human gets everything in full, within a bound that no human reads past.
    fn keep(&mut self, id: String, execution: &Execution) {
        let mut kept = execution.clone();
        // text and code stand in the result once more
        let texts = kept.stdout.len() + kept.stderr.len() + 2 * (kept.text.len() + kept.code.len());
        self.kept_bytes += texts + outputs_bytes(&kept);
        if self.kept_bytes > MAX_KEPT_BYTES {
            kept.outputs.clear();
            for text in [&mut kept.stdout, &mut kept.stderr, &mut kept.text, &mut kept.code] {
                shorten(text);
            }
            kept.truncated = true;
        }
        self.results.push(CodeExecResult {
            id,
            code: kept.code.clone(),
            output: vec![ResultPart::Text(kept.text.clone())],
            execution: kept,
        });
    }
}

impl Limit {
    const fn told(self) -> &'static str {
        match self {
            Self::Turns => "the turns are used up",
            Self::Failures => "too many calls in a row have failed",
            Self::EqualCalls => "the same call was sent again and again",
            Self::Tokens => "the tokens are used up",
            Self::Time => "the time is used up",
        }
    }

    fn note(self) -> String {
        format!("No more code can be run: {}. Answer now with what you have found.", self.told())
    }
}

fn nothing(cut: bool) -> End {
    let message = if cut {
        "the model answered nothing: its limit on tokens (max_tokens) ended its messages before a text began"
    } else {
        "the model answered nothing"
    };
    failed(FailureKind::ModelEmpty, message.to_owned())
}

/// The beginning of a text that is too much.
fn shorten(text: &mut String) {
    if text.len() > SHORT_BYTES {
        text.truncate(text.floor_char_boundary(SHORT_BYTES));
        text.push_str("\n[... cut: this run has put out too much ...]\n");
    }
}

/// What the rich results of an execution take, roughly.
fn outputs_bytes(execution: &Execution) -> usize {
    let size = |value: &serde_json::Value| {
        value.as_str().map_or_else(|| value.to_string().len(), str::len)
    };
    execution.outputs.iter().flat_map(|output| output.data.values()).map(size).sum()
}

fn failed(kind: FailureKind, message: String) -> End {
    End::Failed(Failure { kind, retry_safe: false, message })
}
