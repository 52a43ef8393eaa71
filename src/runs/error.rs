//! How runs fail before, or instead of, giving a result.

use crate::domain::coded::{Class, Code, Coded};
use crate::domain::id::RunId;
use crate::llm::LlmError;
use crate::sandbox::SandboxError;
use crate::sessions::SessionError;
use crate::store::StoreError;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The service takes no new work.
    #[error("the service is shutting down")]
    ShuttingDown,
    /// The caller went away before the code was handed over.
    #[error("the caller went away")]
    CallerGone,
    /// The code is too long.
    #[error("the code is longer than {0} bytes")]
    CodeTooLong(u64),
    /// The standard input is too long.
    #[error("stdin is longer than {0} bytes")]
    StdinTooLong(usize),
    /// The environment cannot be one.
    #[error(
        "env needs names without = and NUL, values without NUL, and {0} bytes together at most"
    )]
    BadEnv(usize),
    /// The caller's notes are too long.
    #[error("metadata is longer than {0} bytes")]
    MetadataTooLong(usize),
    /// The question is too long.
    #[error("the message is longer than {0} bytes: put data into files")]
    MessageTooLong(usize),
    /// A number is outside of its range.
    #[error("{} must be more than {above} and at most {most}", field.trim_start_matches('/'))]
    OutOfRange {
        /// Which one, as a JSON pointer.
        field: &'static str,
        /// What it must be more than.
        above: f64,
        /// The most that is allowed.
        most: f64,
    },
    /// It can be chosen when a session is made, and one that is there was named.
    #[error("{} belongs to the making of a session, and the one that is named is made", .0.trim_start_matches('/'))]
    SessionIsMade(&'static str),
    /// A file of the request is too large.
    #[error("a file is larger than {0} bytes")]
    FileTooLarge(u64),
    /// The content of a file could not be kept until its turn.
    #[error("a file could not be kept")]
    Spool(#[source] std::io::Error),
    /// The key was used for another request.
    #[error("the Idempotency-Key was used for another request")]
    KeyReused,
    /// The first request with this key goes on.
    #[error("the first request with this Idempotency-Key is still going on")]
    KeyInProgress,
    /// No run of this tenant has the id.
    #[error("there is no run {0}")]
    NotFound(RunId),
    /// The run has ended.
    #[error("the run {0} has ended")]
    Ended(RunId),
    /// Another replica works on it.
    #[error("the run {0} goes on at another replica of this service: send its calls there")]
    Elsewhere(RunId),
    /// The run that a conversation is to go on from has not ended.
    #[error("the run {0} is still going on: a conversation goes on from its end")]
    StillRunning(RunId),
    /// The run that a conversation is to go on from asked no model.
    #[error("the run {0} holds no conversation: only an interpret does")]
    NoConversation(RunId),
    /// The run made no such file.
    #[error("the run has no file named {0}")]
    NoSuchFile(String),
    /// The session or its sandbox failed before the code was handed over.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The store failed before the code was handed over.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no model to ask.
    #[error(transparent)]
    Model(#[from] LlmError),
    /// The model failed; what happened until then is recorded.
    #[error("the model of the run {run_id} failed")]
    ModelFailed {
        /// The run that recorded it.
        run_id: RunId,
        /// What the model's service did.
        source: LlmError,
    },
    /// A part of ours panicked.
    #[error("the work ended in a panic")]
    Panicked(#[source] tokio::task::JoinError),
}

impl From<SandboxError> for RunError {
    fn from(error: SandboxError) -> Self {
        Self::Session(error.into())
    }
}

impl RunError {
    /// True when another request with the same key was quicker.
    #[must_use]
    pub const fn is_claimed(&self) -> bool {
        matches!(
            self,
            Self::Store(StoreError::Claimed)
                | Self::Session(SessionError::Store(StoreError::Claimed))
        )
    }
}

impl Coded for RunError {
    fn code(&self) -> Code {
        match self {
            Self::ShuttingDown => Class::Unavailable.named("shutting_down"),
            Self::CallerGone => Class::Unavailable.named("caller_gone"),
            Self::CodeTooLong(_) => Class::TooLarge.named("code_too_long"),
            Self::StdinTooLong(_) => Class::TooLarge.named("stdin_too_long"),
            Self::BadEnv(_) => Class::Invalid.named("invalid_env"),
            Self::MetadataTooLong(_) => Class::Invalid.named("metadata_too_long"),
            Self::MessageTooLong(_) => Class::Invalid.named("message_too_long"),
            Self::OutOfRange { .. } => Class::Invalid.named("out_of_range"),
            Self::SessionIsMade(_) => Class::Invalid.named("session_is_made"),
            Self::FileTooLarge(_) => Class::TooLarge.named("file_too_large"),
            Self::KeyReused => Class::Invalid.named("idempotency_key_reused"),
            Self::KeyInProgress => Class::Conflict.named("idempotency_in_progress"),
            Self::NotFound(_) => Class::NotFound.named("run_not_found"),
            Self::Ended(_) => Class::Conflict.named("run_ended"),
            Self::Elsewhere(_) => Class::Conflict.named("run_elsewhere"),
            Self::StillRunning(_) => Class::Conflict.named("run_not_ended"),
            Self::NoConversation(_) => Class::Invalid.named("no_conversation"),
            Self::NoSuchFile(_) => Class::NotFound.named("file_not_found"),
            Self::Session(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Model(error) | Self::ModelFailed { source: error, .. } => error.code(),
            Self::Spool(_) => Class::Internal.named("spool_failed"),
            Self::Panicked(_) => Class::Internal.named("internal"),
        }
    }

    fn told(&self) -> Option<String> {
        match self {
            Self::Session(error) => error.told(),
            _ => None,
        }
    }

    fn retry_safe(&self) -> Option<bool> {
        match self {
            Self::Session(error) => error.retry_safe(),
            _ => (self.code().class == Class::Unavailable).then_some(true),
        }
    }

    fn field(&self) -> Option<&'static str> {
        match self {
            Self::OutOfRange { field, .. } | Self::SessionIsMade(field) => Some(field),
            Self::StdinTooLong(_) => Some("/stdin"),
            Self::BadEnv(_) => Some("/env"),
            Self::MetadataTooLong(_) => Some("/metadata"),
            Self::MessageTooLong(_) => Some("/message"),
            Self::NoConversation(_) => Some("/previous_run_id"),
            Self::Session(error) => error.field(),
            Self::Model(LlmError::UnknownModel { .. }) => Some("/model"),
            _ => None,
        }
    }

    fn run_id(&self) -> Option<RunId> {
        match self {
            Self::ModelFailed { run_id, .. } => Some(*run_id),
            _ => None,
        }
    }
}
