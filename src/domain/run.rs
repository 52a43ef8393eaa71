//! A run: one recorded exec, shell, execute or interpret.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::domain::execution::{Execution, Failure};
use crate::domain::file::OutputFile;
use crate::domain::id::{RunId, SessionId};

/// One recorded exec, shell, execute or interpret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// What it is, and how far it is.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// The answer with its `sandbox:` links as the model wrote them; for other kinds the execution's text.
    pub text: String,
    /// True when the model's limit on tokens cut its answer off.
    #[serde(default)]
    pub truncated: bool,
    /// What was executed, in order.
    pub code_exec_results: Vec<CodeExecResult>,
    /// The files that it made, kept beyond the session.
    pub output_files: Vec<OutputFile>,
    /// Targets of the answer's links that could not be kept: not there, too large, or outside of the
    /// files folder.
    #[serde(default)]
    pub missing_files: Vec<String>,
}

impl Run {
    /// A run that has put out nothing.
    #[must_use]
    pub const fn empty(summary: RunSummary) -> Self {
        Self {
            summary,
            text: String::new(),
            truncated: false,
            code_exec_results: Vec::new(),
            output_files: Vec::new(),
            missing_files: Vec::new(),
        }
    }
}

/// A run without what it put out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunSummary {
    /// Names this run.
    pub id: RunId,
    /// What was asked for.
    pub kind: RunKind,
    /// The session that it ran in.
    pub session_id: SessionId,
    /// The provider entry of that session.
    pub provider: String,
    /// The model that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How far it is.
    pub status: RunStatus,
    /// The question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The run whose conversation it went on with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub previous_run_id: Option<RunId>,
    /// What went wrong, for people.
    pub error: Option<String>,
    /// What stopped it, when it was not the code itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What the model counted.
    pub usage: Usage,
    /// How often the model was asked.
    pub turns: u32,
    /// When it was asked for.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When its turn came.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub finished_at: Option<OffsetDateTime>,
    /// From start to end, in milliseconds; null while it runs and when unknown.
    pub duration_ms: Option<f64>,
    /// What the caller noted.
    pub metadata: BTreeMap<String, String>,
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// A cell in a session.
    Exec,
    /// A command line in a session.
    Shell,
    /// A cell in a sandbox of its own.
    Execute,
    /// A question to a model.
    Interpret,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Waiting for its turn.
    Queued,
    /// Going on.
    Running,
    /// Ended well.
    Success,
    /// Ended with an error.
    Error,
    /// Ended by its time limit.
    Timeout,
    /// The service ended while it ran: it may or may not have run to its end.
    Unknown,
    /// Ended by its caller.
    Cancelled,
}

impl RunKind {
    /// The word that stands in JSON and in the store.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Shell => "shell",
            Self::Execute => "execute",
            Self::Interpret => "interpret",
        }
    }
}

impl RunStatus {
    /// The word that stands in JSON and in the store.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Success => "success",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Unknown => "unknown",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One execution of a run in the shape that gllm-tools gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeExecResult {
    /// The model's id for the call, or the execution's.
    pub id: String,
    /// The code that ran.
    pub code: String,
    /// Its text; in the last result also the files that the answer links.
    pub output: Vec<ResultPart>,
    /// The whole execution.
    pub execution: Execution,
}

/// A part of a result: text or a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ResultPart {
    /// A file that the answer links.
    File(OutputFile),
    /// Text for display.
    Text(String),
}

/// Tokens as the model's service counted them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
}

impl Usage {
    /// Adds what one turn used.
    pub fn add(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
    }
}
