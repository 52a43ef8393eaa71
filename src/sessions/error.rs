//! How sessions fail.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::domain::coded::{Class, Code, Coded};
use crate::domain::id::SessionId;
use crate::domain::session::{EndReason, Session};
use crate::sandbox::SandboxError;
use crate::store::StoreError;

/// What could not be done with a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No session of this tenant has the id.
    #[error("there is no session {0}")]
    NotFound(SessionId),
    /// It has ended.
    #[error("the session ended at {at} ({}{why})", reason.word())]
    Gone {
        /// When, in RFC 3339.
        at: String,
        /// Why.
        reason: EndReason,
        /// Why its sandbox could not be made, after a colon.
        why: String,
    },
    /// Another replica serves it.
    #[error("the session {0} is served by another replica of this service: send its calls there")]
    Elsewhere(SessionId),
    /// Too many calls wait for it.
    #[error("{0} calls wait for this session already")]
    Busy(u32),
    /// Its sandbox is still being made.
    #[error("the session is still starting")]
    Starting,
    /// As many sessions live as may.
    #[error("{0} sessions live already: delete one, or try again later")]
    TooMany(u32),
    /// The sandbox or its provider failed.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SessionError {
    /// The error for a session that has ended.
    #[must_use]
    pub fn gone(session: &Session) -> Self {
        let at = session.ended_at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
        Self::Gone {
            at: at.format(&Rfc3339).unwrap_or_default(),
            reason: session.end_reason.unwrap_or(EndReason::Lost),
            why: session
                .failure
                .as_ref()
                .map_or_else(String::new, |failure| format!(": {}", failure.message)),
        }
    }
}

impl Coded for SessionError {
    fn code(&self) -> Code {
        match self {
            Self::NotFound(_) => Class::NotFound.named("session_not_found"),
            Self::Elsewhere(_) => Class::Conflict.named("session_elsewhere"),
            Self::Gone { reason, .. } => Class::Gone.named(match reason {
                EndReason::Deleted => "session_deleted",
                EndReason::Expired => "session_expired",
                EndReason::Idle => "session_idle",
                EndReason::Lost => "session_lost",
                EndReason::Failed => "session_failed",
            }),
            Self::Busy(_) => Class::Conflict.named("session_busy"),
            Self::Starting => Class::Conflict.named("session_starting"),
            Self::TooMany(_) => Class::Unavailable.named("too_many_sessions"),
            Self::Sandbox(error) => error.code(),
            Self::Store(error) => error.code(),
        }
    }

    fn told(&self) -> Option<String> {
        match self {
            Self::Sandbox(error) => error.told(),
            _ => None,
        }
    }

    fn retry_safe(&self) -> Option<bool> {
        match self {
            Self::Sandbox(error) => error.retry_safe(),
            _ => (self.code().class == Class::Unavailable).then_some(true),
        }
    }

    fn field(&self) -> Option<&'static str> {
        match self {
            Self::Sandbox(error) => error.field(),
            _ => None,
        }
    }
}
