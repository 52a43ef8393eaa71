//! What a service elsewhere says of a failure.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// What a service says of a failure: short, on one line, without keys of ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reason(String);

/// Characters of a reason that are told.
const MAX_REASON: usize = 300;

impl Reason {
    /// What is told of a message.
    #[must_use]
    pub fn new(message: &str) -> Self {
        let plain = message.chars().map(|c| if c.is_control() { ' ' } else { c });
        Self(plain.take(MAX_REASON).collect())
    }

    /// The same without secrets: some services repeat the key. They go first: half of one is one too.
    #[must_use]
    pub fn without_secrets(message: &str, secrets: &[SecretString]) -> Self {
        let mut whole = Self(message.to_owned());
        whole.without(secrets);
        Self::new(&whole.0)
    }

    /// Takes secrets out of it: some services repeat the key.
    pub fn without(&mut self, secrets: &[SecretString]) {
        for secret in secrets.iter().map(ExposeSecret::expose_secret) {
            if !secret.is_empty() {
                self.0 = self.0.replace(secret, "[key]");
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.trim().is_empty() { Ok(()) } else { write!(out, ": {}", self.0.trim()) }
    }
}
