//! Where a key comes from: a setting, a variable or a file.

use std::path::{Path, PathBuf};

use secrecy::SecretString;

use super::vendor;

/// Why there is no key where one was named.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file of the key cannot be read.
    #[error("cannot read the key from {}", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    /// The variable of the key is not set.
    #[error("the variable {0}, which should hold the key, is not set")]
    Variable(String),
    /// Two places are named for one key.
    #[error("the key is to come from a variable and from a file: name one")]
    Two,
    /// The file of the key is empty.
    #[error("there is no key in {}", .0.display())]
    Empty(PathBuf),
}

/// The key that is given, or that the file holds; None where neither is named.
pub(super) fn given(
    key: Option<SecretString>,
    file: Option<&Path>,
) -> Result<Option<SecretString>, KeyError> {
    match (key, file) {
        (Some(_), Some(_)) => Err(KeyError::Two),
        (Some(key), None) => Ok(Some(key)),
        (None, Some(path)) => in_file(path).map(Some),
        (None, None) => Ok(None),
    }
}

/// The key that a variable or a file holds; None where neither is named.
pub(super) fn named(
    variable: Option<&str>,
    file: Option<&Path>,
) -> Result<Option<SecretString>, KeyError> {
    match (variable, file) {
        (Some(_), Some(_)) => Err(KeyError::Two),
        (Some(variable), None) => match vendor(variable) {
            Some(key) => Ok(Some(SecretString::from(key))),
            None => Err(KeyError::Variable(variable.to_owned())),
        },
        (None, file) => given(None, file),
    }
}

/// A key as files hold it, with the end of its line.
fn in_file(path: &Path) -> Result<SecretString, KeyError> {
    let read = std::fs::read_to_string(path);
    let text = read.map_err(|error| KeyError::File(path.to_owned(), error))?;
    match text.trim() {
        "" => Err(KeyError::Empty(path.to_owned())),
        key => Ok(SecretString::from(key)),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_key_comes_from_one_place_and_an_absent_one_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, "sk-1\n").expect("written");
        let key = named(None, Some(&path)).expect("good").expect("a key");
        assert_eq!(key.expose_secret(), "sk-1");
        assert!(named(None, None).expect("good").is_none());
        assert!(matches!(named(Some("X"), Some(&path)), Err(KeyError::Two)));
        assert!(matches!(given(Some("k".into()), Some(&path)), Err(KeyError::Two)));
        let absent = named(Some("NOT_SET_ANYWHERE"), None);
        assert!(matches!(absent, Err(KeyError::Variable(_))));
        assert!(matches!(named(None, Some(Path::new("/no/such"))), Err(KeyError::File(..))));
        std::fs::write(&path, " \n").expect("written");
        assert!(matches!(named(None, Some(&path)), Err(KeyError::Empty(_))));
    }
}
