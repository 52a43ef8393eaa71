//! How models fail.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::domain::coded::{Class, Code, Coded};
use crate::domain::reason::Reason;

/// What could not be had from a model.
#[derive(Debug, thiserror::Error)]
pub enum LlmError {
    /// No model is configured.
    #[error(
        "no model is configured: set INTERPRETERD_MODEL and, for anything but OpenAI itself, \
         INTERPRETERD_MODEL_BASE_URL (and INTERPRETERD_MODEL_API_KEY where the service wants a key); \
         several models stand in a TOML file, docs/models.md has an example"
    )]
    NotConfigured,
    /// No model has this name.
    #[error("there is no model named {name}, but {}", known.join(", "))]
    UnknownModel {
        /// The name.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// The recording cannot be read.
    #[error("the recording {} cannot be used", .0.display())]
    Recording(PathBuf, #[source] std::io::Error),
    /// The recording does not go with what happened.
    #[error("the recording does not go on from here: {0}")]
    OffScript(&'static str),
    /// The base URL is none.
    #[error("the base URL of the model {0} is not one: it begins with http:// or https://")]
    BaseUrl(String),
    /// A header cannot be sent.
    #[error(
        "the header {0} of the model's service cannot be sent: its name, or its value (the key, perhaps), holds what headers may not, such as the end of a line"
    )]
    Header(String),
    /// The HTTP client cannot be made.
    #[error(transparent)]
    Client(#[from] crate::net::ClientError),
    /// It failed when the same request was made before.
    #[error("the model's service failed when this request was made before")]
    FailedBefore,
    /// The service refused the key.
    #[error("the model's service refused the key (HTTP {status}){reason}")]
    Auth {
        /// What it answered.
        status: u16,
        /// What it says of it.
        reason: Reason,
    },
    /// Too many requests, or no quota left.
    #[error("the model's service is asked too often, or the quota is used up (HTTP 429){reason}")]
    RateLimited {
        /// When it may be asked again.
        after: Option<Duration>,
        /// What it says of it.
        reason: Reason,
    },
    /// The service has a fault or is overloaded.
    #[error("the model's service failed (HTTP {status}){reason}")]
    Overloaded {
        /// What it answered.
        status: u16,
        /// When it may be asked again.
        after: Option<Duration>,
        /// What it says of it.
        reason: Reason,
    },
    /// The answer ended before its end was told.
    #[error("the model's service broke off its answer")]
    BrokenOff,
    /// The conversation is longer than the model can read.
    #[error("the conversation is longer than the model can read")]
    ContextTooLong,
    /// The service does not accept the request.
    #[error("the model's service does not accept the request (HTTP {status}){reason}")]
    Refused {
        /// What it answered.
        status: u16,
        /// What it says of it.
        reason: Reason,
    },
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
    /// The same, with no key in what the service said: some repeat it.
    #[must_use]
    pub(super) fn without(mut self, secrets: &[SecretString]) -> Self {
        if let Self::Auth { reason, .. }
        | Self::RateLimited { reason, .. }
        | Self::Overloaded { reason, .. }
        | Self::Refused { reason, .. } = &mut self
        {
            reason.without(secrets);
        }
        self
    }

    /// True when the same request may do better in a moment.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::RateLimited { .. }
            | Self::Overloaded { .. }
            | Self::BrokenOff
            | Self::Timeout
            | Self::Transport(_) => true,
            Self::NotConfigured
            | Self::UnknownModel { .. }
            | Self::Recording(..)
            | Self::OffScript(_)
            | Self::BaseUrl(_)
            | Self::Header(_)
            | Self::Client(_)
            | Self::Auth { .. }
            | Self::FailedBefore
            | Self::ContextTooLong
            | Self::Refused { .. }
            | Self::BadResponse(_) => false,
        }
    }

    /// When the service wants to be asked again.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { after, .. } | Self::Overloaded { after, .. } => *after,
            _ => None,
        }
    }
}

impl Coded for LlmError {
    fn code(&self) -> Code {
        match self {
            Self::NotConfigured => Class::NotConfigured.named("model_not_configured"),
            Self::UnknownModel { .. } => Class::Invalid.named("unknown_model"),
            Self::Timeout => Class::UpstreamTimeout.named("model_timeout"),
            Self::Recording(..)
            | Self::OffScript(_)
            | Self::BaseUrl(_)
            | Self::Header(_)
            | Self::Client(_)
            | Self::Auth { .. }
            | Self::FailedBefore
            | Self::RateLimited { .. }
            | Self::Overloaded { .. }
            | Self::BrokenOff
            | Self::ContextTooLong
            | Self::Refused { .. }
            | Self::Transport(_)
            | Self::BadResponse(_) => Class::Upstream.named("model_unavailable"),
        }
    }
}
