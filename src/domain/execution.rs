//! A cell and what came of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::file::{ChangedFile, OutputFile};
use crate::domain::id::{ExecutionId, RunId, SessionId};

/// A time as it is told: in milliseconds, to the microsecond.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Code to run once. Its `env` and `stdin` are never stored, logged or echoed.
#[derive(Clone)]
pub struct Cell {
    /// Becomes the execution's id.
    pub id: ExecutionId,
    /// The run that it belongs to.
    pub run_id: RunId,
    /// The session that it runs in.
    pub session_id: SessionId,
    /// Python, or a command line for a shell.
    pub code: String,
    /// What the code is written in.
    pub language: Language,
    /// How long it may run.
    pub timeout: Duration,
    /// Environment for this cell alone.
    pub env: BTreeMap<String, String>,
    /// Standard input for this cell alone.
    pub stdin: Option<String>,
}

/// What a cell is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Run by the session's kernel, which keeps its state.
    Python,
    /// Run by `bash -c` in the session's sandbox.
    Shell,
}

/// What came of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Execution {
    /// Names this execution.
    pub id: ExecutionId,
    /// The run that recorded it.
    pub run_id: RunId,
    /// The session that it ran in.
    pub session_id: SessionId,
    /// How it ended.
    pub status: ExecutionStatus,
    /// The code as it was handed over.
    pub code: String,
    /// Standard output, byte-exact up to the cap, then head and tail.
    pub stdout: String,
    /// Standard error, byte-exact up to the cap, then head and tail.
    pub stderr: String,
    /// Fit for display: stdout, then stderr, then the last expression's value or the error.
    pub text: String,
    /// The error as text.
    pub error: Option<String>,
    /// The error in parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_detail: Option<ErrorDetail>,
    /// 0 on success, the code's own, 128+N for a signal, 1 for any other failure, null when unknown.
    pub exit_code: Option<i32>,
    /// How long it ran, in milliseconds; null when unknown.
    pub duration_ms: Option<f64>,
    /// The kernel's count of cells; null for a shell and when unknown.
    pub execution_count: Option<u32>,
    /// Rich results in order.
    pub outputs: Vec<Output>,
    /// Files that it made or changed.
    pub files: Vec<ChangedFile>,
    /// The files kept beyond the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_files: Option<Vec<OutputFile>>,
    /// How many bytes went to stdout, kept or not.
    pub stdout_bytes: u64,
    /// How many bytes went to stderr, kept or not.
    pub stderr_bytes: u64,
    /// True when some of the output or outputs was not kept.
    pub truncated: bool,
    /// True when invalid UTF-8 was replaced.
    pub lossy: bool,
    /// What threads of earlier cells printed before this cell began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_output: Option<String>,
    /// True when the variables of the session are gone.
    pub state_lost: bool,
    /// True when the files of the session are gone.
    pub files_lost: bool,
    /// What stopped it, when it was not the code itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionStatus {
    /// It ran to its end.
    Success,
    /// It raised, exited with a code other than 0, or was ended.
    Error,
    /// It ran out of time.
    Timeout,
    /// It may or may not have run; it must not be tried again.
    Unknown,
}

/// An error in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// The exception's type.
    pub name: String,
    /// The exception's text.
    pub message: String,
    /// The traceback as Python shows it.
    pub traceback: String,
    /// The line of the cell where it arose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// Why something ended that was not the code's own doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// What happened.
    pub kind: FailureKind,
    /// True when doing it again cannot do it twice.
    pub retry_safe: bool,
    /// The same for people.
    pub message: String,
}

/// The kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Out of memory.
    Oom,
    /// The interpreter ended: exit, a signal, or killed after a timeout.
    Killed,
    /// Interrupted by the caller or by the service's end.
    Interrupted,
    /// The sandbox is gone.
    SandboxLost,
    /// A limit other than memory and time.
    Limit,
    /// The model used up its turns.
    MaxTurns,
    /// The model answered nothing.
    ModelEmpty,
    /// The model could not be asked.
    ModelUnavailable,
    /// Time or tokens for the whole run are used up.
    Budget,
}

/// One rich result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Output {
    /// MIME type to data: text as it is, images as base64, JSON as JSON.
    pub data: Map<String, Value>,
    /// What the program said about the data.
    pub metadata: Map<String, Value>,
    /// True for the value of the last expression.
    pub main: bool,
}

impl Execution {
    /// The execution of a cell of which nothing is known yet: status `unknown`, all else empty.
    #[must_use]
    pub fn of(cell: &Cell) -> Self {
        Self {
            id: cell.id,
            run_id: cell.run_id,
            session_id: cell.session_id,
            status: ExecutionStatus::Unknown,
            code: cell.code.clone(),
            stdout: String::new(),
            stderr: String::new(),
            text: String::new(),
            error: None,
            error_detail: None,
            exit_code: None,
            duration_ms: None,
            execution_count: None,
            outputs: Vec::new(),
            files: Vec::new(),
            output_files: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            truncated: false,
            lossy: false,
            late_output: None,
            state_lost: false,
            files_lost: false,
            failure: None,
        }
    }

    /// The plain text of the last expression's value.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        let main = self.outputs.iter().rev().find(|output| output.main)?;
        main.data.get("text/plain")?.as_str()
    }

    /// Stdout, then stderr, then the value or the error, each on a line of its own.
    #[must_use]
    pub fn display_text(&self) -> String {
        let last = self.error.as_deref().or_else(|| self.value()).unwrap_or_default();
        let mut text = self.stdout.clone();
        for part in [self.stderr.as_str(), last] {
            if !text.is_empty() && !text.ends_with('\n') && !part.is_empty() {
                text.push('\n');
            }
            text.push_str(part);
        }
        text
    }
}
