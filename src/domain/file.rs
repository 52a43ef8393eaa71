//! Files of a session and of a run.

use std::fmt;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// The longest path, in bytes.
pub const MAX_PATH_BYTES: usize = 4096;
/// The longest name of one file or folder, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// A path below the files folder: no absolute path, no `.` or `..`, `/` between folders.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String)]
pub struct FilePath(String);

/// Why a text is no path below the files folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FilePathError {
    /// Nothing at all.
    #[error("the path is empty")]
    Empty,
    /// Over [`MAX_PATH_BYTES`].
    #[error("the path is longer than 4096 bytes")]
    TooLong,
    /// A part over [`MAX_NAME_BYTES`].
    #[error("a name in the path is longer than 255 bytes")]
    NameTooLong,
    /// A NUL byte.
    #[error("the path holds a NUL byte")]
    Nul,
    /// Absolute, with a drive letter, or with an empty, `.` or `..` part.
    #[error("the path must stay below the files folder: no leading /, no empty part, no . or ..")]
    Outside,
}

impl FilePath {
    /// The path, checked.
    ///
    /// # Errors
    /// [`FilePathError`] says what is wrong with it.
    pub fn new(text: impl Into<String>) -> Result<Self, FilePathError> {
        let text = text.into();
        if text.is_empty() {
            return Err(FilePathError::Empty);
        }
        if text.len() > MAX_PATH_BYTES {
            return Err(FilePathError::TooLong);
        }
        if text.contains('\0') {
            return Err(FilePathError::Nul);
        }
        if text.split('/').any(|part| part.len() > MAX_NAME_BYTES) {
            return Err(FilePathError::NameTooLong);
        }
        // a backslash is an ordinary character here, but no spelling of "outside" may use one
        let leaves = text.split('/').any(|part| matches!(part, "" | "." | ".."))
            || text.split(['/', '\\']).any(|part| part == "..")
            || text.starts_with('\\')
            || has_drive(&text);
        if leaves { Err(FilePathError::Outside) } else { Ok(Self(text)) }
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last part.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// What kind of file it is, judged by its name.
    #[must_use]
    pub fn mime(&self) -> &'static str {
        mime_guess::from_path(&self.0).first_raw().unwrap_or("application/octet-stream")
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

fn has_drive(text: &str) -> bool {
    matches!(text.as_bytes(), [letter, b':', b'/' | b'\\', ..] if letter.is_ascii_alphabetic())
}

/// A file of a session as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Relative to the files folder.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Judged by the name.
    pub mime: String,
    /// When its content last changed.
    #[serde(with = "time::serde::rfc3339")]
    pub modified_at: OffsetDateTime,
    /// Changes whenever the content does: a strong entity tag (RFC 9110) without its quotes.
    pub etag: String,
}

/// What must be so before a file is read, written or removed: RFC 9110, section 13.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    #[default]
    Always,
    /// The file is there, with one of these tags, or with any when there are none.
    Matches(Vec<String>),
    /// The file is not there with one of these tags, or not at all when there are none.
    Differs(Vec<String>),
}

impl Condition {
    /// Whether it holds for a file as it is now; None is a file that is not there.
    #[must_use]
    pub fn holds(&self, etag: Option<&str>) -> bool {
        let among = |tags: &[String]| {
            etag.is_some_and(|etag| tags.is_empty() || tags.iter().any(|tag| tag == etag))
        };
        match self {
            Self::Always => true,
            Self::Matches(tags) => among(tags),
            Self::Differs(tags) => !among(tags),
        }
    }
}

/// Which part of a file is wanted: RFC 9110, section 14.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// From this byte on, to this one at most, both included.
    From(u64, Option<u64>),
    /// The last bytes.
    Last(u64),
}

impl Part {
    /// First byte and length in a file of this size; None when there is no such part.
    #[must_use]
    pub fn within(self, size: u64) -> Option<(u64, u64)> {
        match self {
            Self::Whole => Some((0, size)),
            Self::From(first, _) if first >= size => None,
            Self::From(first, last) => {
                let last = last.unwrap_or(u64::MAX).min(size - 1);
                (first <= last).then(|| (first, last - first + 1))
            }
            Self::Last(count) if count == 0 || size == 0 => None,
            Self::Last(count) => Some((size - count.min(size), count.min(size))),
        }
    }
}

/// A file that an execution made or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedFile {
    /// Relative to the files folder.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Judged by the name.
    pub mime: String,
    /// What happened to it.
    pub change: Change,
}

/// What an execution did to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It was not there before.
    Created,
    /// It was there before.
    Modified,
}

/// A file that a run made, kept beyond its session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputFile {
    /// Relative to the files folder.
    pub path: String,
    /// The last part of the path.
    pub name: String,
    /// A path on this service that gives the content.
    pub url: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Judged by the name.
    pub mime: String,
    /// SHA-256 of the content, lower-case hexadecimal.
    pub sha256: String,
    /// True when the answer links it.
    pub linked: bool,
    /// The content where it was asked for and is at most 1 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_script_are_paths() {
        for text in [
            "a b.csv",
            "génération – ü.csv",
            "数据.csv",
            "e\u{301}.txt",
            "-rf",
            "con.txt",
            "x\"y.csv",
            "sub/x.png",
            "..a",
            "a..",
            "a\\b",
        ] {
            assert_eq!(FilePath::new(text).map(|path| path.to_string()), Ok(text.to_owned()));
        }
        assert!(FilePath::new("x".repeat(255)).is_ok());
    }

    #[test]
    fn parts_of_a_file_are_cut_to_its_size() {
        for (part, expected) in [
            (Part::Whole, Some((0, 10))),
            (Part::From(2, Some(4)), Some((2, 3))),
            (Part::From(9, None), Some((9, 1))),
            (Part::From(0, Some(99)), Some((0, 10))),
            (Part::From(10, None), None),
            (Part::From(3, Some(2)), None),
            (Part::Last(3), Some((7, 3))),
            (Part::Last(99), Some((0, 10))),
            (Part::Last(0), None),
        ] {
            assert_eq!(part.within(10), expected, "{part:?}");
        }
        assert_eq!((Part::Whole.within(0), Part::Last(1).within(0)), (Some((0, 0)), None));
    }

    #[test]
    fn conditions_hold_as_the_standard_has_it() {
        let tags = || vec!["a".to_owned(), "b".to_owned()];
        for (condition, on_a, on_c, on_none) in [
            (Condition::Always, true, true, true),
            (Condition::Matches(tags()), true, false, false),
            (Condition::Matches(Vec::new()), true, true, false),
            (Condition::Differs(tags()), false, true, true),
            (Condition::Differs(Vec::new()), false, false, true),
        ] {
            let held = [Some("a"), Some("c"), None].map(|etag| condition.holds(etag));
            assert_eq!(held, [on_a, on_c, on_none], "{condition:?}");
        }
    }

    #[test]
    fn no_spelling_of_outside_is_a_path() {
        for text in [
            "../../etc/x",
            "/etc/x",
            "a/../../b",
            "..",
            ".",
            "a/..",
            "C:\\x",
            "c:/x",
            "..\\x",
            "a\\..\\..\\b",
            "\\x",
            "a//b",
            "a/",
            "./a",
        ] {
            assert_eq!(FilePath::new(text), Err(FilePathError::Outside), "{text}");
        }
        assert_eq!(FilePath::new(""), Err(FilePathError::Empty));
        assert_eq!(FilePath::new("a\0b"), Err(FilePathError::Nul));
        assert_eq!(FilePath::new("x".repeat(256)), Err(FilePathError::NameTooLong));
        assert_eq!(FilePath::new("a/".repeat(2100) + "b"), Err(FilePathError::TooLong));
    }
}
