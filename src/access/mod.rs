//! Who may call: bearer keys.

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::domain::coded::{Class, Code, Coded};
use crate::domain::id::Tenant;

/// The shortest key that is taken.
const LEAST_KEY_CHARACTERS: usize = 16;

/// The keys that callers may show; none means that nobody is asked.
pub struct Access {
    digests: Vec<[u8; 32]>,
}

/// Why a caller is sent away, or a key is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No key came, or a wrong one.
    #[error("a valid API key is needed: Authorization: Bearer KEY")]
    Unauthorized,
    /// A configured key is too short to be a secret.
    #[error("an API key has fewer than 16 characters")]
    WeakKey,
}

impl Coded for AccessError {
    fn code(&self) -> Code {
        match self {
            Self::Unauthorized => Class::Unauthorized.named("unauthorized"),
            Self::WeakKey => Class::NotConfigured.named("weak_key"),
        }
    }
}

impl Access {
    /// Takes the configured keys; only their digests stay in memory.
    ///
    /// # Errors
    /// [`AccessError::WeakKey`].
    pub fn new(keys: &[SecretString]) -> Result<Self, AccessError> {
        let keys = keys.iter().map(|key| key.expose_secret().trim()).filter(|key| !key.is_empty());
        let digest = |key: &str| {
            if key.chars().count() < LEAST_KEY_CHARACTERS {
                return Err(AccessError::WeakKey);
            }
            Ok(Sha256::digest(key).into())
        };
        Ok(Self { digests: keys.map(digest).collect::<Result<_, _>>()? })
    }

    /// True when callers must show a key.
    #[must_use]
    pub fn asks(&self) -> bool {
        !self.digests.is_empty()
    }

    /// Whose things a caller sees. `authorization`: the header as it came.
    ///
    /// # Errors
    /// [`AccessError::Unauthorized`] when a key is needed and none of ours came.
    pub fn admit(&self, authorization: Option<&str>) -> Result<Tenant, AccessError> {
        if !self.asks() {
            return Ok(Tenant::single());
        }
        let shown = authorization.and_then(bearer).ok_or(AccessError::Unauthorized)?;
        let shown: [u8; 32] = Sha256::digest(shown).into();
        // every digest is compared, so that time tells nothing
        let known =
            self.digests.iter().fold(0, |known, digest| known | digest.ct_eq(&shown).unwrap_u8());
        if known == 1 { Ok(Tenant::single()) } else { Err(AccessError::Unauthorized) }
    }
}

/// RFC 6750, section 2.1: the scheme's name is read in any case.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, key) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_configured_key_is_let_in() {
        let access = Access::new(&["0123456789abcdef".into(), "fedcba9876543210".into()])
            .expect("long keys");
        for header in ["Bearer 0123456789abcdef", "bearer fedcba9876543210"] {
            assert_eq!(access.admit(Some(header)), Ok(Tenant::single()));
        }
        for header in [
            None,
            Some("0123456789abcdef"),
            Some("Basic 0123456789abcdef"),
            Some("Bearer x"),
            Some("Bearer "),
        ] {
            assert_eq!(access.admit(header), Err(AccessError::Unauthorized), "{header:?}");
        }
    }

    #[test]
    fn without_keys_nobody_is_asked_and_short_keys_are_refused() {
        assert_eq!(
            Access::new(&["".into()]).map(|access| access.admit(None)),
            Ok(Ok(Tenant::single()))
        );
        assert_eq!(Access::new(&["short".into()]).map(drop), Err(AccessError::WeakKey));
    }
}
