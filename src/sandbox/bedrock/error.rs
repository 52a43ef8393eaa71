//! How AgentCore fails.

use crate::domain::reason::Reason;
use crate::sandbox::SandboxError;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What could not be had from AgentCore.
#[derive(Debug, thiserror::Error)]
pub(super) enum BedrockError {
    /// Certainly nothing was sent: no way to it, no region, no credentials.
    #[error("AgentCore cannot be called: are there credentials, and a way to it?")]
    NotSent(#[source] Cause),
    /// It refused before anything was done.
    #[error("AgentCore refused (HTTP {status}{}){reason}", code.as_ref().map(|code| format!(", {code}")).unwrap_or_default())]
    Refused {
        /// Of HTTP.
        status: u16,
        /// AWS's own name of the error.
        code: Option<String>,
        /// Its words.
        reason: Reason,
    },
    /// The sandbox is gone.
    #[error("the sandbox is gone")]
    Gone,
    /// Something else is being done in the sandbox.
    #[error("the sandbox is busy{0}")]
    Busy(Reason),
    /// It was sent, and failed in a way that does not say whether it was done.
    #[error("AgentCore failed{0}")]
    Failed(Reason),
    /// It was sent, and no answer came whole.
    #[error("the connection to AgentCore broke")]
    Broken(#[source] Cause),
    /// It did not answer in time.
    #[error("AgentCore took too long")]
    TooSlow,
    /// The stream of the answer ended without one.
    #[error("AgentCore answered nothing")]
    Nothing,
    /// What it was to work on could not be put there, so it was not begun.
    #[error("the sandbox could not be given what it was to work on")]
    NotBrought(#[source] Box<BedrockError>),
    /// It was done, and what came of it could not be fetched.
    #[error("what came of it could not be fetched")]
    NotFetched(#[source] Box<BedrockError>),
    /// A tool refused what it was asked for.
    #[error("a tool of AgentCore refused{0}")]
    Tool(Reason),
    /// What came is not what was asked for.
    #[error("the sandbox answered something else than it was asked for: {0}")]
    BadAnswer(&'static str),
    /// The sandbox's interpreter does not answer.
    #[error("the sandbox has no working interpreter")]
    NoInterpreter,
    /// The sandbox's disk is full.
    #[error("the sandbox's disk is full")]
    Full,
}

impl BedrockError {
    /// True when certainly nothing was done.
    pub(super) fn is_undone(&self) -> bool {
        matches!(
            self,
            Self::NotSent(_)
                | Self::Refused { .. }
                | Self::Gone
                | Self::Busy(_)
                | Self::NotBrought(_)
        )
    }

    pub(super) fn has_status(&self, wanted: u16) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == wanted)
    }

    /// True when doing it once more may help, and does no more than doing it once.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Failed(_) | Self::Broken(_) | Self::TooSlow | Self::Nothing => true,
            Self::NotSent(_)
            | Self::Refused { .. }
            | Self::Gone
            | Self::Busy(_)
            | Self::NotBrought(_)
            | Self::NotFetched(_)
            | Self::Tool(_)
            | Self::BadAnswer(_)
            | Self::NoInterpreter
            | Self::Full => false,
        }
    }
}

impl From<BedrockError> for SandboxError {
    fn from(error: BedrockError) -> Self {
        match error {
            BedrockError::Gone => Self::Lost,
            BedrockError::Full => Self::Full,
            BedrockError::Refused { status: 402 | 429, reason, .. } => Self::Limited(reason),
            BedrockError::Refused { .. } | BedrockError::Tool(_) | BedrockError::NoInterpreter => {
                Self::Refused(Reason::new(&error.to_string()))
            }
            BedrockError::NotSent(_)
            | BedrockError::Busy(_)
            | BedrockError::Failed(_)
            | BedrockError::Broken(_)
            | BedrockError::TooSlow
            | BedrockError::Nothing
            | BedrockError::NotBrought(_)
            | BedrockError::NotFetched(_)
            | BedrockError::BadAnswer(_) => Self::NotReady(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_told_as_a_limit_and_a_refusal_with_its_words() {
        let refused = |status, code: &str| BedrockError::Refused {
            status,
            code: Some(code.to_owned()),
            reason: Reason::new("why"),
        };
        let quota = SandboxError::from(refused(402, "ServiceQuotaExceededException"));
        assert!(matches!(quota, SandboxError::Limited(_)));
        assert!(matches!(refused(429, "x").into(), SandboxError::Limited(_)));
        let denied = SandboxError::from(refused(403, "AccessDeniedException"));
        assert_eq!(
            denied.to_string(),
            "the provider refused: AgentCore refused (HTTP 403, AccessDeniedException): why"
        );
    }
}
