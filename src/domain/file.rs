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
