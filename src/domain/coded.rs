//! What an error is called, whichever layer it comes from.

use crate::domain::id::RunId;

/// A stable name for machines and the class that decides how a caller is told.
pub trait Coded {
    /// The class and the stable name, such as `session_not_found`.
    fn code(&self) -> Code;

    /// The field of the request that is to blame, where one is.
    fn field(&self) -> Option<&'static str> {
        None
    }

    /// What may be told of the cause though it is not the caller's.
    fn told(&self) -> Option<String> {
        None
    }

    /// True when doing the same again cannot do it twice, where that is known.
    fn retry_safe(&self) -> Option<bool> {
        (self.code().class == Class::Unavailable).then_some(true)
    }

    /// The run that recorded what happened, where one did.
    fn run_id(&self) -> Option<RunId> {
        None
    }
}

/// An error with its causes, for people.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// The class of an error and its name in snake case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// Decides how a caller is told.
    pub class: Class,
    /// Stable; callers may match on it.
    pub name: &'static str,
}

/// What went wrong from the caller's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The request cannot be read.
    Malformed,
    /// It is not known who asks.
    Unauthorized,
    /// Whoever asks, it is not allowed from there.
    Forbidden,
    /// No such thing, or none of this tenant's.
    NotFound,
    /// The state of things does not allow it, or its provider cannot do it.
    Conflict,
    /// It was there and has ended.
    Gone,
    /// A condition that the caller set does not hold.
    Precondition,
    /// There is no such part of it.
    Range,
    /// More than a limit allows.
    TooLarge,
    /// Well-formed and still not acceptable.
    Invalid,
    /// A setting is missing.
    NotConfigured,
    /// A provider or a model failed.
    Upstream,
    /// A quota or a rate is used up; trying again later is safe.
    Limited,
    /// Not now; trying again later is safe.
    Unavailable,
    /// A remote side took too long.
    UpstreamTimeout,
    /// Ours.
    Internal,
}

impl Class {
    /// An error of this class with a name.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Code {
        Code { class: self, name }
    }
}
