//! How models fail.

use std::path::PathBuf;
use std::time::Duration;

use crate::domain::coded::{Class, Code, Coded};

/// What could not be had from a model.
#[derive(Debug, thiserror::Error)]
pub enum LlmError {
    /// No model is configured.
    #[error(
        "no model is configured: set INTERPRETERD_MODEL and, for anything but OpenAI itself, \
         INTERPRETERD_MODEL_BASE_URL (and INTERPRETERD_MODEL_API_KEY where the service wants a key)"
    )]
    NotConfigured,
    /// No model has this name.
    #[error("there is no model named {0}")]
    UnknownModel(String),
    /// The recording cannot be read.
    #[error("the recording {} cannot be used", .0.display())]
    Recording(PathBuf, #[source] std::io::Error),
    /// The recording does not go with what happened.
    #[error("the recording does not go on from here: {0}")]
    OffScript(&'static str),
    /// The HTTP client cannot be made.
    #[error(transparent)]
    Client(#[from] crate::net::ClientError),
    /// It failed when the same request was made before.
    #[error("the model's service failed when this request was made before")]
    FailedBefore,
    /// The service refused the key.
    #[error("the model's service refused the key (HTTP {0})")]
    Auth(u16),
    /// Too many requests.
    #[error("the model's service is asked too often")]
    RateLimited {
        /// When it may be asked again.
        after: Option<Duration>,
    },
    /// The service has a fault or is overloaded.
    #[error("the model's service failed (HTTP {0})")]
    Overloaded(u16),
    /// The conversation is longer than the model can read.
    #[error("the conversation is longer than the model can read")]
    ContextTooLong,
    /// The service does not accept the request.
    #[error("the model's service does not accept the request (HTTP {0})")]
    Refused(u16),
    /// It took too long.
    #[error("the model's service took too long")]
    Timeout,
    /// It could not be reached.
    #[error("the model's service cannot be reached")]
    Transport(#[source] reqwest::Error),
    /// What it answered is not what the protocol says.
    #[error("the model's service answered something else than the protocol says: {0}")]
    BadResponse(&'static str),
}

impl LlmError {
    /// True when the same request may do better in a moment.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::RateLimited { .. } | Self::Overloaded(_) | Self::Timeout | Self::Transport(_) => {
                true
            }
            Self::NotConfigured
            | Self::UnknownModel(_)
            | Self::Recording(..)
            | Self::OffScript(_)
            | Self::Client(_)
            | Self::Auth(_)
            | Self::FailedBefore
            | Self::ContextTooLong
            | Self::Refused(_)
            | Self::BadResponse(_) => false,
        }
    }
}

impl Coded for LlmError {
    fn code(&self) -> Code {
        match self {
            Self::NotConfigured => Class::NotConfigured.named("model_not_configured"),
            Self::UnknownModel(_) => Class::Invalid.named("unknown_model"),
            Self::Timeout => Class::UpstreamTimeout.named("model_timeout"),
            Self::Recording(..)
            | Self::OffScript(_)
            | Self::Client(_)
            | Self::Auth(_)
            | Self::FailedBefore
            | Self::RateLimited { .. }
            | Self::Overloaded(_)
            | Self::ContextTooLong
            | Self::Refused(_)
            | Self::Transport(_)
            | Self::BadResponse(_) => Class::Upstream.named("model_unavailable"),
        }
    }
}
