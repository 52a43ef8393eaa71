//! Packages in a sandbox at E2B: wheels alone, by the sandbox's own pip.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::Notify;

use super::ending::End;
use super::envd::Envd;
use super::error::E2bError;
use super::kernel::Run;
use super::process::{Exit, Followed, Process};
use crate::domain::event::OutputSink;
use crate::domain::id::ExecutionId;
use crate::domain::package::PackageSet;
use crate::sandbox::packages::without_userinfo;
use crate::sandbox::{PackagesError, SandboxError};

const MAX_OUTPUT: usize = 64 << 10;
const MAX_WORDS: usize = 500;
const OPTIONS: [&str; 9] = [
    "-m",
    "pip",
    "install",
    "--only-binary=:all:",
    "--no-input",
    "--quiet",
    "--disable-pip-version-check",
    "--no-warn-script-location",
    "--root-user-action=ignore",
];

/// How packages are installed.
pub(super) struct Install<'a> {
    pub(super) packages: &'a PackageSet,
    /// The Python that they are for.
    pub(super) python: &'a str,
    pub(super) sandbox_id: &'a str,
    /// Where they are found; pip's own default when None.
    pub(super) index: Option<&'a str>,
    pub(super) limit: Duration,
}

impl Install<'_> {
    pub(super) async fn run(&self, envd: &Envd<'_>) -> Result<(), SandboxError> {
        let requirements = self.packages.texts();
        let mut arguments = OPTIONS.to_vec();
        arguments.extend(self.index.iter().flat_map(|index| ["--index-url", *index]));
        arguments.push("--");
        arguments.extend(requirements.iter().map(String::as_str));
        let process = Process {
            program: self.python,
            arguments: &arguments,
            env: &BTreeMap::new(),
            folder: "/",
            tag: ExecutionId::new().to_string(),
            sandbox_id: self.sandbox_id,
        };
        let (never, sink) = (Notify::new(), OutputSink::discard());
        let run = Run { code: "", limit: self.limit, interrupt: &never, sink: &sink };
        let mut followed = Followed::new(MAX_OUTPUT);
        match process.follow(envd, &run, &mut followed).await {
            End::Closed if followed.exit == Some(Exit(0)) => Ok(()),
            End::TimedOut => Err(PackagesError::TooSlow.into()),
            End::NotStarted(error) => Err(error.into()),
            End::Closed => Err(why(&followed.streams.into_stderr(), &requirements).into()),
            End::Cut | End::NoAnswer | End::Silent | End::Interrupted | End::Flooded => {
                Err(SandboxError::NotReady(Box::new(E2bError::TooSlow)))
            }
        }
    }
}

/// Why pip failed, from its words.
fn why(stderr: &str, requirements: &[String]) -> PackagesError {
    let errors: Vec<&str> =
        stderr.lines().filter_map(|line| line.trim().strip_prefix("ERROR: ")).collect();
    let found = |word: &str| errors.iter().find_map(|line| Some(line.split_once(word)?.1));
    let unreachable = ["NewConnectionError", "Max retries exceeded", "Temporary failure in name"];
    if unreachable.iter().any(|word| stderr.contains(word)) {
        return PackagesError::Unreachable;
    }
    if stderr.contains("ResolutionImpossible") || stderr.contains("conflicting dependencies") {
        return PackagesError::Conflict(short(&errors.join(" ")));
    }
    if let Some(rest) = found("satisfies the requirement ") {
        let (requirement, versions) = rest.split_once(" (from versions: ").unwrap_or((rest, ""));
        let name = requirements.iter().find(|text| requirement.starts_with(text.as_str()));
        return PackagesError::NoVersion {
            requirement: short(name.map_or(requirement, String::as_str)),
            versions: short(versions.trim_end_matches(')')),
        };
    }
    let last = errors.last().copied().or_else(|| stderr.trim().lines().last());
    PackagesError::Failed(short(last.unwrap_or("pip said nothing")))
}

fn short(words: &str) -> String {
    let plain = words.chars().map(|c| if c.is_control() { ' ' } else { c });
    without_userinfo(&plain.collect::<String>()).chars().take(MAX_WORDS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pips_words_are_told_as_what_they_mean() {
        let requirements = ["nosuch>=1".to_owned()];
        let why = |text| why(text, &requirements);
        let absent = "ERROR: Could not find a version that satisfies the requirement nosuch>=1 (from versions: none)\nERROR: No matching distribution found for nosuch>=1\n";
        assert_eq!(
            why(absent),
            PackagesError::NoVersion { requirement: "nosuch>=1".into(), versions: "none".into() }
        );
        let offline = "WARNING: Retrying after NewConnectionError\nERROR: Could not find a version that satisfies the requirement x (from versions: none)";
        assert_eq!(why(offline), PackagesError::Unreachable);
        let clash = "ERROR: Cannot install a and b\nERROR: ResolutionImpossible: for help";
        assert!(matches!(why(clash), PackagesError::Conflict(_)));
        assert_eq!(why("ERROR: a\x1b[31m b"), PackagesError::Failed("a [31m b".into()));
        assert_eq!(why(""), PackagesError::Failed("pip said nothing".into()));
    }
}
