//! Why packages that a session asks for cannot be had.

use crate::domain::coded::{Class, Code, Coded};

/// Why packages that a session asks for cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackagesError {
    /// The settings allow none.
    #[error("packages cannot be asked for here (the setting local_packages is off)")]
    Off,
    /// The settings allow only those that are prepared.
    #[error("only prepared sets of packages can be asked for here: {}", listed(.0))]
    NotPrepared(Vec<String>),
    /// It comes with the sandbox, in one version.
    #[error("{name} is there in version {version}, and no other version of it can be had")]
    Built {
        /// The package.
        name: String,
        /// Its version.
        version: String,
    },
    /// The provider's store has no package of this name, and nothing is fetched while it runs.
    #[error(
        "{0} is not in the package store: `interpreterd guest install --provider pydantic --packages {0}` puts it there"
    )]
    NotStored(String),
    /// The index has no package of this name.
    #[error("there is no package named {0}")]
    NoSuch(String),
    /// There is no version like this.
    #[error("no version of {requirement} can be installed here; there are: {versions}")]
    NoVersion {
        /// What was asked for.
        requirement: String,
        /// What there is.
        versions: String,
    },
    /// There is source code alone.
    #[error(
        "{0} has no wheel for this Python and machine, and packages are not built from source code"
    )]
    NoWheel(String),
    /// They do not fit together, or not with what the sandbox brings.
    #[error("the packages do not go together with each other or with what is there: {0}")]
    Conflict(String),
    /// They take more than a set may take.
    #[error("the packages take more than {0} bytes, which is the most for a set")]
    TooLarge(u64),
    /// All that is kept is in use.
    #[error("sets of packages that are in use take all of the {0} bytes that they may take")]
    CacheFull(u64),
    /// The index cannot be reached.
    #[error("the package index cannot be reached")]
    Unreachable,
    /// The host has too little memory free to install anything.
    #[error("the host has no memory for an installation now")]
    NoMemory,
    /// Too many other sets are waiting to be installed.
    #[error("too many sets of packages are being installed: try again later")]
    Busy,
    /// The time for installing is over.
    #[error("installing the packages took too long")]
    TooSlow,
    /// The installer failed in a way that is not known.
    #[error("the packages cannot be installed: {0}")]
    Failed(String),
}

impl Coded for PackagesError {
    fn code(&self) -> Code {
        match self {
            Self::Off => Class::Conflict.named("provider_cannot"),
            Self::NotPrepared(_) => Class::Invalid.named("packages_not_prepared"),
            Self::Built { .. } | Self::Conflict(_) => Class::Invalid.named("packages_conflict"),
            Self::NoSuch(_) | Self::NotStored(_) | Self::NoVersion { .. } => {
                Class::Invalid.named("package_not_found")
            }
            Self::NoWheel(_) => Class::Invalid.named("package_without_wheel"),
            Self::TooLarge(_) => Class::Invalid.named("packages_too_large"),
            Self::Failed(_) => Class::Invalid.named("packages_failed"),
            Self::CacheFull(_) => Class::Unavailable.named("package_cache_full"),
            Self::Unreachable => Class::Unavailable.named("package_index_unreachable"),
            Self::NoMemory => Class::Unavailable.named("no_memory"),
            Self::Busy => Class::Unavailable.named("packages_busy"),
            Self::TooSlow => Class::UpstreamTimeout.named("packages_too_slow"),
        }
    }

    fn field(&self) -> Option<&'static str> {
        Some("/packages")
    }
}

fn listed(sets: &[String]) -> String {
    if sets.is_empty() { "there are none".to_owned() } else { sets.join("; ") }
}

/// A text whose URLs name no user and no password.
pub(super) fn without_userinfo(text: &str) -> String {
    let mut parts = text.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let authority = part.find(['/', ' ', '\'', '"']).unwrap_or(part.len());
        let host = part[..authority].rfind('@').map_or(0, |at| at + 1);
        clean.push_str("://");
        clean.push_str(&part[host..]);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_of_an_index_is_told() {
        for (text, clean) in [
            ("https://me:p@ss@host/simple", "https://host/simple"),
            ("'https://u:p@a/x' and http://b/c@d", "'https://a/x' and http://b/c@d"),
            ("no URL: a@b", "no URL: a@b"),
        ] {
            assert_eq!(without_userinfo(text), clean);
        }
    }
}
