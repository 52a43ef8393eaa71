//! Who may import whom: the house of ARCHITECTURE.md, a line a room.

use std::collections::BTreeMap;
use std::path::Path;

const MAY_IMPORT: [(&str, &[&str]); 14] = [
    ("main", &["app", "api", "config", "domain", "sandbox", "telemetry"]),
    (
        "app",
        &[
            "access",
            "api",
            "config",
            "domain",
            "llm",
            "net",
            "runs",
            "sandbox",
            "sessions",
            "store",
            "telemetry",
        ],
    ),
    ("api", &["access", "config", "domain", "runs", "sessions", "telemetry"]),
    (
        "runs",
        &["config", "domain", "interpreter", "llm", "sandbox", "sessions", "store", "telemetry"],
    ),
    ("interpreter", &["domain", "llm", "sandbox"]),
    ("sessions", &["config", "domain", "sandbox", "store", "telemetry"]),
    ("access", &["domain"]),
    ("sandbox", &["config", "domain", "net", "telemetry"]),
    ("llm", &["config", "domain", "net", "telemetry"]),
    ("store", &["config", "domain", "net", "telemetry"]),
    ("domain", &[]),
    ("config", &["domain"]),
    ("telemetry", &["config", "domain", "net"]),
    ("net", &["domain"]),
];

/// Adapters of one port know nothing of each other; only `connect.rs` names them all.
const ADAPTERS: [(&str, &[&str]); 2] = [
    ("llm", &["anthropic", "openai", "replay"]),
    ("sandbox", &["bedrock", "e2b", "local", "pydantic"]),
];

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name =
                path.strip_prefix(root().join("src")).unwrap().to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn all() -> Vec<(String, String)> {
    let mut found = Vec::new();
    sources(&root().join("src"), &mut found);
    found
}

/// Names that follow `crate::` or, in the program, `interpreterd::`; tests at a file's foot included.
fn imported(source: &str) -> Vec<String> {
    let mut rooms = Vec::new();
    for prefix in ["crate::", "interpreterd::"] {
        for rest in source.split(prefix).skip(1) {
            rooms.extend(first_names(rest));
        }
    }
    rooms
}

/// The first names of a path, or of each path of a list in braces.
fn first_names(path: &str) -> Vec<String> {
    let name =
        |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let Some(list) = path.strip_prefix('{') else { return vec![name(path)] };
    let mut names = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (index, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                names.push(name(&list[start..index]));
                start = index + 1;
                if character == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

#[test]
fn imports_are_seen_however_they_are_written() {
    let source = "use crate::store::Store;\nuse crate::{domain::id::{A, B}, sandbox, net::x};\n crate::llm::f();";
    assert_eq!(imported(source), ["store", "domain", "sandbox", "net", "llm"]);
}

#[test]
fn every_room_imports_only_what_the_whitelist_lets_it() {
    let allowed: BTreeMap<_, _> = MAY_IMPORT.into_iter().collect();
    let mut wrong = Vec::new();
    for (file, source) in all() {
        let room = file.split(['/', '.']).next().unwrap().to_owned();
        if room == "lib" {
            continue;
        }
        let allowed = allowed.get(room.as_str()).unwrap_or_else(|| panic!("{file} is in no room"));
        for name in imported(&source) {
            if name != room && !name.is_empty() && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{file} imports {name}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn adapters_know_nothing_of_each_other() {
    for (port, adapters) in ADAPTERS {
        for (file, source) in all() {
            for adapter in adapters {
                let home = format!("{port}/{adapter}");
                let names = [format!("{port}::{adapter}"), format!("super::{adapter}::")];
                let outside = file.starts_with(&format!("{port}/"))
                    && !file.starts_with(&home)
                    && !file.ends_with("connect.rs");
                let named = names.iter().any(|name| source.contains(name.as_str()));
                assert!(!(outside && named), "{file} names the adapter {adapter}");
            }
        }
    }
}

#[test]
fn files_stay_within_500_lines_and_say_what_they_are_for() {
    for (file, source) in all() {
        assert!(source.lines().count() <= 500, "{file} is longer than 500 lines");
        let first = source.lines().next().unwrap();
        assert!(
            first.starts_with("//! ") || first == "#![expect(",
            "{file} does not say what it is for"
        );
        assert!(first.chars().count() <= 110, "{file} says too much in its first line");
    }
}

#[test]
fn the_program_speaks_of_http_errors_in_one_file_only() {
    for (file, source) in all() {
        let is_layer_below = !file.starts_with("api/") && !file.starts_with("llm/");
        assert!(!(is_layer_below && source.contains("StatusCode")), "{file} knows HTTP statuses");
    }
}
