//! Packages that a session asks for: names and versions alone.

use std::fmt;
use std::str::FromStr;

use pep508_rs::pep440_rs::Version;
use pep508_rs::{PackageName, VerbatimUrl, VersionOrUrl};
use serde::{Deserialize, Serialize};

/// How many requirements a set may hold.
const MAX_REQUIREMENTS: usize = 64;
/// How long the text of one may be.
const MAX_TEXT_BYTES: usize = 256;

/// Why a text is no requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackageError {
    /// Not what PEP 508 calls a requirement.
    #[error(
        "a name, with versions where they matter, is needed: such as polars or polars>=1.20,<2"
    )]
    Unreadable,
    /// It says where to get the package from.
    #[error("URLs and paths are not taken: a name and versions are needed")]
    Url,
    /// It holds in some environments only.
    #[error("environment markers (after ;) are not taken: a name and versions are needed")]
    Marker,
    /// Too many.
    #[error("{MAX_REQUIREMENTS} packages can be asked for at most")]
    TooMany,
}

/// One requirement of PEP 508 without URL and marker, in its normal form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Requirement(String);

/// Requirements in order, each once: the same set in another order is the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Requirement>")]
pub struct PackageSet(Vec<Requirement>);

impl Requirement {
    /// Reads a requirement.
    pub fn new(text: &str) -> Result<Self, PackageError> {
        if text.len() > MAX_TEXT_BYTES || text.contains(['\n', '\r', '\0']) {
            return Err(PackageError::Unreadable);
        }
        if text.contains("://") || text.contains('@') || text.contains('/') {
            return Err(PackageError::Url);
        }
        let read = parse(text).ok_or(PackageError::Unreadable)?;
        if !read.marker.is_true() {
            return Err(PackageError::Marker);
        }
        match read.version_or_url {
            Some(VersionOrUrl::Url(_)) => Err(PackageError::Url),
            Some(VersionOrUrl::VersionSpecifier(_)) | None => Ok(Self(read.to_string())),
        }
    }

    /// The normal form of its name.
    #[must_use]
    pub fn name(&self) -> String {
        parse(&self.0).map(|read| read.name.to_string()).unwrap_or_default()
    }

    /// Whether a package of this version is what it asks for. Extras may want more than that.
    #[must_use]
    pub fn is_met_by(&self, version: &str) -> bool {
        let Some(read) = parse(&self.0) else { return false };
        match read.version_or_url {
            _ if !read.extras.is_empty() => false,
            None => true,
            Some(VersionOrUrl::VersionSpecifier(wanted)) => {
                Version::from_str(version).is_ok_and(|version| wanted.contains(&version))
            }
            Some(VersionOrUrl::Url(_)) => false,
        }
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The normal form of a package's name, by which packages are told apart.
#[must_use]
pub fn normal_name(name: &str) -> Option<String> {
    PackageName::new(name.to_owned()).ok().map(|name| name.to_string())
}

fn parse(text: &str) -> Option<pep508_rs::Requirement<VerbatimUrl>> {
    pep508_rs::Requirement::from_str(text).ok()
}

impl PackageSet {
    /// True when nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The requirements, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Requirement> {
        self.0.iter()
    }

    /// The requirements as texts.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

impl FromIterator<Requirement> for PackageSet {
    fn from_iter<T: IntoIterator<Item = Requirement>>(requirements: T) -> Self {
        let mut all: Vec<_> = requirements.into_iter().collect();
        all.sort();
        all.dedup();
        Self(all)
    }
}

impl TryFrom<Vec<Requirement>> for PackageSet {
    type Error = PackageError;

    fn try_from(requirements: Vec<Requirement>) -> Result<Self, PackageError> {
        if requirements.len() > MAX_REQUIREMENTS {
            return Err(PackageError::TooMany);
        }
        Ok(requirements.into_iter().collect())
    }
}

/// Requirements with spaces between them, as settings have them.
impl FromStr for PackageSet {
    type Err = PackageError;

    fn from_str(text: &str) -> Result<Self, PackageError> {
        let all: Result<Vec<_>, _> = text.split_whitespace().map(Requirement::new).collect();
        Self::try_from(all?)
    }
}

impl TryFrom<String> for Requirement {
    type Error = PackageError;

    fn try_from(text: String) -> Result<Self, PackageError> {
        Self::new(&text)
    }
}

impl From<Requirement> for String {
    fn from(requirement: Requirement) -> Self {
        requirement.0
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for PackageSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.texts().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions_are_taken_in_their_normal_form() {
        for (text, normal) in [
            ("Polars", "polars"),
            (" ruamel.yaml >= 0.18 , <1 ", "ruamel-yaml>=0.18,<1"),
            ("typing_extensions==4.*", "typing-extensions==4.*"),
            ("requests[socks]~=2.31", "requests[socks]~=2.31"),
        ] {
            assert_eq!(Requirement::new(text).map(|read| read.0), Ok(normal.to_owned()), "{text}");
        }
    }

    #[test]
    fn urls_paths_options_and_markers_are_refused() {
        for (text, why) in [
            ("https://example.org/x.whl", PackageError::Url),
            ("x @ https://example.org/x.whl", PackageError::Url),
            ("x @ file:///etc/passwd", PackageError::Url),
            ("git+ssh://git@example.org/x", PackageError::Url),
            ("./x", PackageError::Url),
            ("/etc/passwd", PackageError::Url),
            ("x/../y", PackageError::Url),
            (".", PackageError::Unreadable),
            ("..", PackageError::Unreadable),
            ("x.whl --hash=sha256:00", PackageError::Unreadable),
            ("--index-url=example", PackageError::Unreadable),
            ("-r requirements.txt", PackageError::Unreadable),
            ("-e .", PackageError::Unreadable),
            ("x --no-deps", PackageError::Unreadable),
            ("x\n--pre", PackageError::Unreadable),
            ("x; python_version > '3'", PackageError::Marker),
            ("", PackageError::Unreadable),
            ("x==", PackageError::Unreadable),
            ("x==1; y", PackageError::Unreadable),
            ("x\u{0}", PackageError::Unreadable),
        ] {
            assert_eq!(Requirement::new(text), Err(why), "{text:?}");
        }
        assert_eq!(Requirement::new(&"x".repeat(300)), Err(PackageError::Unreadable));
    }

    #[test]
    fn a_set_in_another_order_is_the_same() {
        let one: PackageSet = "polars duckdb>=1,<2 Polars".parse().expect("a set");
        let other: PackageSet = "duckdb<2,>=1 polars".parse().expect("a set");
        assert_eq!(one.iter().map(Requirement::name).collect::<Vec<_>>(), ["duckdb", "polars"]);
        assert_eq!(one, other);
    }

    #[test]
    fn what_is_there_already_is_known_by_its_version() {
        let is_met = |text, version| Requirement::new(text).expect("read").is_met_by(version);
        assert!(is_met("numpy", "2.1.0") && is_met("numpy>=2,<3", "2.1.0"));
        assert!(!is_met("numpy==1.26", "2.1.0") && !is_met("numpy[x]", "2.1.0"));
        assert!(!is_met("numpy>=2", "no version"));
    }
}
