//! What the room's installer says: read as hostile input.

use serde::Deserialize;

use crate::domain::execution::{Execution, ExecutionStatus, FailureKind};
use crate::sandbox::PackagesError;
use crate::sandbox::packages::without_userinfo;

const MAX_WORDS: usize = 500;

/// One line of JSON.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Told {
    Installed { installed: Vec<String> },
    Not(Why),
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
enum Why {
    TooLarge,
    Unreachable { words: String },
    NoWheel { name: String },
    NoSuch { name: String },
    NoVersion { requirement: String, versions: String },
    Conflict { words: String },
    Failed { words: String },
}

/// What came of the installer's cell. Words of pip are shortened, and hold no password of an index.
pub(super) fn read(execution: &Execution, most_bytes: u64) -> Result<Vec<String>, PackagesError> {
    let words = |words: &str| without_userinfo(&words.chars().take(MAX_WORDS).collect::<String>());
    if execution.status == ExecutionStatus::Timeout {
        return Err(PackagesError::TooSlow);
    }
    if let Some(failure) = &execution.failure {
        return Err(match failure.kind {
            FailureKind::Oom | FailureKind::Limit => PackagesError::TooLarge(most_bytes),
            _ => PackagesError::Failed(words(&failure.message)),
        });
    }
    match serde_json::from_str(execution.stdout.trim()) {
        Ok(Told::Installed { installed }) => Ok(installed),
        Ok(Told::Not(why)) => Err(match why {
            Why::TooLarge => PackagesError::TooLarge(most_bytes),
            Why::Unreachable { words: why } => {
                tracing::warn!(why = words(&why), "the package index cannot be reached");
                PackagesError::Unreachable
            }
            Why::NoWheel { name } => PackagesError::NoWheel(words(&name)),
            Why::NoSuch { name } => PackagesError::NoSuch(words(&name)),
            Why::NoVersion { requirement, versions } => PackagesError::NoVersion {
                requirement: words(&requirement),
                versions: words(&versions),
            },
            Why::Conflict { words: why } => PackagesError::Conflict(words(&why)),
            Why::Failed { words: why } => PackagesError::Failed(words(&why)),
        }),
        Err(_) => {
            let error = execution.error.as_deref().unwrap_or("the installer said nothing");
            Err(PackagesError::Failed(words(error)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::domain::execution::{Cell, Language};
    use crate::domain::id::{ExecutionId, RunId, SessionId};

    #[test]
    fn what_the_installer_says_is_read_as_hostile_input() {
        let told = |stdout: &str| {
            let mut execution = Execution::of(&Cell {
                id: ExecutionId::new(),
                run_id: RunId::new(),
                session_id: SessionId::new(),
                code: String::new(),
                language: Language::Python,
                timeout: Duration::from_secs(1),
                env: BTreeMap::new(),
                stdin: None,
            });
            execution.status = ExecutionStatus::Success;
            stdout.clone_into(&mut execution.stdout);
            read(&execution, 7)
        };
        assert_eq!(told("{\"installed\": [\"a==1\"]}\n"), Ok(vec!["a==1".to_owned()]));
        assert_eq!(told("{\"why\": \"too_large\"}"), Err(PackagesError::TooLarge(7)));
        assert_eq!(
            told("{\"why\": \"no_wheel\", \"name\": \"x\"}"),
            Err(PackagesError::NoWheel("x".into()))
        );
        for other in ["", "[]", "{}", "{\"why\": \"else\"}", "{\"installed\": 1}", "1\n{}"] {
            assert!(matches!(told(other), Err(PackagesError::Failed(_))), "{other}");
        }
    }
}
