//! The documents as files of the repository: their links, the index, the codes that they explain.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::repository;

/// Files below a folder whose names end so.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, end));
        } else if path.to_str().is_some_and(|name| name.ends_with(end)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn documents() -> Vec<PathBuf> {
    let own = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| repository().join(name));
    let below = ["docs", "deploy", "benches"].map(|name| files(&repository().join(name), ".md"));
    own.into_iter().chain(below.concat()).collect()
}

/// A document without its blocks of code, in which brackets mean something else.
fn prose(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let mut inside = false;
    let outside = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    };
    text.lines().filter(outside).map(|line| format!("{line}\n")).collect()
}

/// What its links lead to: `[text](target)`, outside of code.
fn targets(prose: &str) -> Vec<String> {
    let prose: String = prose.split('`').step_by(2).collect();
    let begins = prose.match_indices("](").map(|(at, _)| &prose[at + 2..]);
    begins.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

/// The names that GitHub gives to headings.
fn anchors(path: &Path) -> BTreeSet<String> {
    let text = prose(path);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_of_a_document_leads_somewhere() {
    let mut broken = Vec::new();
    let mut followed = 0;
    for document in documents() {
        for target in targets(&prose(&document)) {
            let elsewhere = ["http://", "https://", "mailto:", "sandbox:"];
            if elsewhere.iter().any(|begin| target.starts_with(begin)) {
                continue;
            }
            followed += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() {
                document.clone()
            } else {
                document.parent().unwrap().join(file)
            };
            let there = path.exists() && (anchor.is_empty() || anchors(&path).contains(anchor));
            if !there {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(followed > 40, "{followed} links alone were found");
    assert!(broken.is_empty(), "these lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn the_index_names_every_document() {
    let folder = repository().join("docs");
    let index = folder.join("README.md");
    let named: BTreeSet<String> = targets(&prose(&index)).into_iter().collect();
    let missing: Vec<String> = files(&folder, ".md")
        .iter()
        .filter(|path| **path != index)
        .map(|path| path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned())
        .filter(|name| !named.contains(name))
        .collect();
    assert!(missing.is_empty(), "docs/README.md does not name {missing:?}");
}

#[test]
fn every_code_of_a_problem_is_explained() {
    let page = std::fs::read_to_string(repository().join("docs/api-runs.md")).unwrap();
    let mut codes = BTreeSet::new();
    for file in files(&repository().join("src"), ".rs") {
        let text = std::fs::read_to_string(file).unwrap();
        codes.extend(text.split(".named(").skip(1).filter_map(first_text));
        let problems = text.split("Problem::new(StatusCode::").skip(1);
        codes.extend(problems.filter_map(|rest| first_text(rest.split_once(',')?.1)));
    }
    // told at the start of the service, and to nobody over HTTP
    codes.remove("weak_key");
    assert!(codes.len() > 70 && codes.contains("malformed_json"), "{codes:?}");
    let missing: Vec<_> =
        codes.iter().filter(|code| !page.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "docs/api-runs.md does not explain {missing:?}");
}

/// The text that a call has as its first argument.
fn first_text(rest: &str) -> Option<String> {
    Some(rest.trim_start().strip_prefix('"')?.split_once('"')?.0.to_owned())
}
