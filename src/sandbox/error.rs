//! How sandboxes fail.

use std::io;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::packages::PackagesError;
use crate::domain::coded::{Class, Code, Coded};
use crate::domain::reason::Reason;

/// What a provider or a sandbox could not do.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// No provider entry has this name.
    #[error("there is no provider named {0}")]
    UnknownProvider(String),
    /// This program was built without a provider.
    #[error(
        "the provider entry {entry} needs what this program was built without (the cargo feature {feature})"
    )]
    NotBuilt {
        /// The entry's name.
        entry: String,
        /// The feature of cargo that it needs.
        feature: &'static str,
    },
    /// The provider cannot make sandboxes now.
    #[error("the provider cannot make a sandbox now")]
    NotReady(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The provider's plan or rate allows no more now.
    #[error("the provider allows no more now{0}")]
    Limited(Reason),
    /// The provider refused.
    #[error("the provider refused{0}")]
    Refused(Reason),
    /// The making of a sandbox took too long.
    #[error("the provider took too long to make a sandbox")]
    TooSlow,
    /// The provider cannot do what was asked.
    #[error("this provider cannot do that: {0}")]
    Unsupported(&'static str),
    /// A limit outside of what the provider gives.
    #[error("{} must be between {least} and {most}", limit.trim_start_matches("/limits/"))]
    LimitOutOfRange {
        /// Which limit, as a JSON pointer.
        limit: &'static str,
        /// The least that makes sense.
        least: u64,
        /// The most that the configuration allows.
        most: u64,
    },
    /// The packages that were asked for cannot be had.
    #[error(transparent)]
    Packages(#[from] PackagesError),
    /// The sandbox ends before what was asked for would.
    #[error(
        "the sandbox ends in {left} seconds, and the code may take {needed}: give it less time (timeout_seconds), or make a new session"
    )]
    EndsTooSoon {
        /// Seconds that code can have yet.
        left: u64,
        /// Seconds that it may take.
        needed: f64,
    },
    /// The sandbox cannot be kept for longer.
    #[error("the sandbox ends at {}, and cannot be kept for longer", told_time(*.0))]
    EndsAt(OffsetDateTime),
    /// The sandbox is gone.
    #[error("the sandbox is gone")]
    Lost,
    /// There is no such file.
    #[error("there is no file named {0}")]
    NoSuchFile(String),
    /// The path names something other than a regular file, or leads through one.
    #[error("{0} is not a file in the files folder")]
    NotAFile(String),
    /// The session's own code keeps its files from being reached.
    #[error("the session's own code keeps this from being reached")]
    HeldBack,
    /// The file is not as the caller expected it to be.
    #[error("the file is not as the condition says")]
    ConditionFailed,
    /// The file has no such part.
    #[error("the file has {0} bytes and no such part")]
    NoSuchPart(u64),
    /// The file is larger than files may be.
    #[error("the file is larger than {0} bytes")]
    FileTooLarge(u64),
    /// The sandbox has no room for the file.
    #[error("the sandbox has no room for the file")]
    Full,
    /// The host has not enough free memory for the file.
    #[error("the host has no memory for the file now")]
    NoMemory,
    /// The caller's content broke off; nothing was written.
    #[error("the content broke off before its end; nothing was written")]
    ContentCut(#[source] io::Error),
    /// A file could not be read or written.
    #[error("a file could not be read or written")]
    Io(#[source] io::Error),
}

impl Coded for SandboxError {
    fn code(&self) -> Code {
        match self {
            Self::UnknownProvider(_) => Class::Invalid.named("unknown_provider"),
            Self::NotBuilt { .. } => Class::Internal.named("provider_not_built"),
            Self::NotReady(_) => Class::Unavailable.named("provider_not_ready"),
            Self::Limited(_) => Class::Limited.named("provider_limited"),
            Self::Refused(_) => Class::Upstream.named("provider_refused"),
            Self::TooSlow => Class::UpstreamTimeout.named("provider_too_slow"),
            Self::Unsupported(_) => Class::Conflict.named("provider_cannot"),
            Self::LimitOutOfRange { .. } => Class::Invalid.named("limit_out_of_range"),
            Self::Packages(error) => error.code(),
            Self::EndsTooSoon { .. } => Class::Conflict.named("sandbox_ends_too_soon"),
            Self::EndsAt(_) => Class::Conflict.named("lifetime_bound"),
            Self::Lost => Class::Gone.named("sandbox_lost"),
            Self::NoSuchFile(_) => Class::NotFound.named("file_not_found"),
            Self::NotAFile(_) => Class::Conflict.named("not_a_file"),
            Self::HeldBack => Class::Conflict.named("held_back"),
            Self::ConditionFailed => Class::Precondition.named("condition_failed"),
            Self::NoSuchPart(_) => Class::Range.named("range_not_satisfiable"),
            Self::FileTooLarge(_) => Class::TooLarge.named("file_too_large"),
            Self::Full => Class::TooLarge.named("sandbox_full"),
            Self::NoMemory => Class::Unavailable.named("no_memory"),
            Self::ContentCut(_) => Class::Malformed.named("content_cut"),
            Self::Io(_) => Class::Internal.named("file_failed"),
        }
    }

    fn told(&self) -> Option<String> {
        matches!(self, Self::Refused(_)).then(|| self.to_string())
    }

    /// These say that no code was handed over.
    fn retry_safe(&self) -> Option<bool> {
        let is_passing = matches!(self.code().class, Class::Unavailable | Class::Limited);
        let is_providers = matches!(self, Self::Refused(_) | Self::TooSlow | Self::Lost);
        (is_passing || is_providers).then_some(true)
    }

    fn field(&self) -> Option<&'static str> {
        match self {
            Self::UnknownProvider(_) => Some("/provider"),
            Self::Packages(error) => error.field(),
            Self::EndsTooSoon { .. } => Some("/timeout_seconds"),
            Self::EndsAt(_) => Some("/lifetime_seconds"),
            Self::LimitOutOfRange { limit, .. } => Some(limit),
            _ => None,
        }
    }
}

fn told_time(time: OffsetDateTime) -> String {
    time.replace_nanosecond(0).unwrap_or(time).format(&Rfc3339).unwrap_or_default()
}
