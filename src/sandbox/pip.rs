//! A sandbox's own pip: how it is called, and what its words mean. Pure.

use super::PackagesError;
use super::packages::without_userinfo;

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

/// The arguments of Python that install packages: wheels alone, no questions.
pub(super) fn arguments<'a>(requirements: &'a [String], index: Option<&'a str>) -> Vec<&'a str> {
    let mut arguments = OPTIONS.to_vec();
    arguments.extend(index.iter().flat_map(|index| ["--index-url", *index]));
    arguments.push("--");
    arguments.extend(requirements.iter().map(String::as_str));
    arguments
}

/// Why pip failed, from its words.
pub(super) fn why(stderr: &str, requirements: &[String]) -> PackagesError {
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
