//! How E2B fails.

use std::time::Duration;

use crate::domain::reason::Reason;
use crate::net::ClientError;
use crate::sandbox::SandboxError;

/// The quota of a plan, which no short wait helps against.
const CONCURRENCY: &str = "maximum number of concurrent";
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Pauses double from here.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What could not be had from E2B.
#[derive(Debug, thiserror::Error)]
pub(super) enum E2bError {
    /// No client can be made.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A setting holds no URL.
    #[error("the URL of E2B in the settings cannot be used")]
    Url,
    /// Certainly nothing was sent.
    #[error("E2B cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    /// It was sent, and the answer did not come whole.
    #[error("the connection to E2B broke")]
    Broken(#[source] reqwest::Error),
    /// It did not answer in time.
    #[error("E2B took too long")]
    TooSlow,
    /// It answered that it does not.
    #[error("E2B refused (HTTP {}{}){}", .0.status, .0.code.as_ref().map(|code| format!(", {code}")).unwrap_or_default(), .0.reason)]
    Refused(Refusal),
    /// The sandbox is gone.
    #[error("the sandbox is gone")]
    Gone,
    /// What it answered is not what its API says.
    #[error("E2B answered something else than its API says: {0}")]
    BadAnswer(&'static str),
    /// It names another domain than the configured one.
    #[error("E2B put a sandbox into another domain than the configured one")]
    OtherDomain,
    /// It was sent to the sandbox, and no answer came whole.
    #[error("the sandbox did not answer")]
    NoAnswer,
    /// The sandbox has no working code interpreter.
    #[error("the sandbox has no working code interpreter: is the template made for it?")]
    NoInterpreter,
}

/// A refusal, as far as it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    /// E2B's own code of the error.
    pub(super) code: Option<String>,
    pub(super) reason: Reason,
    /// When it may be tried again.
    pub(super) after: Option<Duration>,
    /// Whether it should be, where the service says so.
    pub(super) again: Option<bool>,
    /// The plan allows no more sandboxes.
    pub(super) is_quota: bool,
}

impl Refusal {
    /// Whether a message speaks of the plan's quota.
    pub(super) fn is_quota(status: u16, message: &str) -> bool {
        status == 429 && message.contains(CONCURRENCY)
    }
}

impl E2bError {
    /// How long to wait before the same is asked again; None where that would help nothing or could do
    /// it twice. `repeatable`: asking twice does no more than asking once.
    pub(super) fn pause(&self, attempt: u32, repeatable: bool) -> Option<Duration> {
        let backoff = (FIRST_PAUSE * 2_u32.saturating_pow(attempt)).min(LONGEST_PAUSE);
        let backoff = backoff.mul_f64(0.5 + fastrand::f64() / 2.0);
        match self {
            Self::Unreachable(_) => Some(backoff),
            Self::Broken(_) => repeatable.then_some(backoff),
            // without a key of its own a call that may have been done is not made again
            Self::Refused(refusal) if !repeatable && refusal.status != 429 => None,
            Self::Refused(refusal) => {
                let passing = match refusal.code.as_deref() {
                    Some("sandbox_create_failed" | "idempotency_in_progress") => true,
                    _ => matches!(refusal.status, 429 | 502 | 503 | 504),
                };
                let again = refusal.again.unwrap_or(passing && !refusal.is_quota);
                again.then(|| refusal.after.unwrap_or(backoff))
            }
            Self::Client(_)
            | Self::Url
            | Self::TooSlow
            | Self::Gone
            | Self::BadAnswer(_)
            | Self::OtherDomain
            | Self::NoAnswer
            | Self::NoInterpreter => None,
        }
    }

    /// True when the status is one of these.
    pub(super) fn has_status(&self, statuses: &[u16]) -> bool {
        matches!(self, Self::Refused(refusal) if statuses.contains(&refusal.status))
    }

    /// True when E2B was not heard at all, or was busy: what it holds may be as it was.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Broken(_) | Self::TooSlow | Self::NoAnswer)
            || self.has_status(&[409, 429, 500, 502, 503, 504])
    }
}

impl From<E2bError> for SandboxError {
    fn from(error: E2bError) -> Self {
        match error {
            E2bError::Gone => Self::Lost,
            E2bError::Refused(refusal) if refusal.status == 429 => Self::Limited(refusal.reason),
            E2bError::Refused(_) | E2bError::OtherDomain | E2bError::NoInterpreter => {
                Self::Refused(Reason::new(&error.to_string()))
            }
            E2bError::Client(_)
            | E2bError::Url
            | E2bError::Unreachable(_)
            | E2bError::Broken(_)
            | E2bError::TooSlow
            | E2bError::NoAnswer
            | E2bError::BadAnswer(_) => Self::NotReady(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: Option<&str>, message: &str) -> E2bError {
        E2bError::Refused(Refusal {
            status,
            code: code.map(str::to_owned),
            reason: Reason::new(message),
            after: None,
            again: None,
            is_quota: Refusal::is_quota(status, message),
        })
    }

    #[test]
    fn what_passes_is_asked_again_and_a_quota_is_not() {
        for (error, again) in [
            (refused(429, None, "Rate limit exceeded"), true),
            (refused(429, None, "the maximum number of concurrent E2B sandboxes (20)"), false),
            (refused(500, Some("sandbox_create_failed"), "Failed to place sandbox"), true),
            (refused(500, None, "x"), false),
            (refused(503, None, "x"), true),
            (refused(404, None, "template not found"), false),
            (refused(401, None, "x"), false),
            (E2bError::TooSlow, false),
            (E2bError::Gone, false),
        ] {
            assert_eq!(error.pause(1, true).is_some(), again, "{error}");
        }
    }

    #[test]
    fn what_may_have_been_done_is_not_done_again_without_a_key() {
        for status in [500, 502, 503, 504] {
            let error = refused(status, Some("sandbox_create_failed"), "x");
            assert_eq!(error.pause(1, false), None, "{status}");
        }
        assert!(refused(429, None, "Rate limit exceeded").pause(1, false).is_some());
    }

    #[test]
    fn the_services_word_on_when_goes_first() {
        let told = |again, after| {
            E2bError::Refused(Refusal {
                status: 503,
                code: None,
                reason: Reason::default(),
                after,
                again,
                is_quota: false,
            })
            .pause(1, true)
        };
        assert_eq!(told(Some(false), None), None);
        assert_eq!(told(Some(true), Some(Duration::from_secs(3))), Some(Duration::from_secs(3)));
        assert!(told(None, None).is_some_and(|pause| pause < Duration::from_secs(1)));
    }

    #[test]
    fn a_refusal_is_told_with_its_code_and_its_words() {
        let error = refused(500, Some("sandbox_create_failed"), "Failed to place sandbox");
        assert_eq!(
            error.to_string(),
            "E2B refused (HTTP 500, sandbox_create_failed): Failed to place sandbox"
        );
    }
}
