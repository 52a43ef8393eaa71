//! Idempotency keys: which request they stand for.

use crate::domain::id::{RunId, SessionId};

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 255;

/// A key that a caller has sent, for one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The route's template.
    pub route: &'static str,
    /// What the caller sent.
    pub key: String,
}

/// A key and the request that it stands for, to be written with what the request begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The key.
    pub key: Key,
    /// A keyed hash of the request, lower-case hexadecimal.
    pub request_hash: String,
}

/// What a key was used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The hash of the request that it came with.
    pub request_hash: String,
    /// What that request began.
    pub subject: Subject,
}

/// What a keyed request begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A run.
    Run(RunId),
    /// A session.
    Session(SessionId),
}

impl Key {
    /// The key, checked: visible ASCII, 255 characters at most.
    #[must_use]
    pub fn new(route: &'static str, key: &str) -> Option<Self> {
        let fits = (1..=MAX_KEY_BYTES).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self { route, key: key.to_owned() })
    }
}
