//! The installed Deno, Pyodide and packages, and what is said where they are not.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;

use crate::support::double::guests;
use crate::support::problem;
use crate::support::pydantic::installed;
use crate::support::server::{Server, command, open_folder};

#[test]
fn installing_again_does_nothing() {
    let output = command().args(["guest", "install", "--provider", "pydantic"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.trim_end(), format!("Deno and Pyodide are there: {}", installed().display()));
}

#[test]
fn a_check_tries_the_provider_that_is_the_default() {
    let folder = open_folder();
    let output = command()
        .arg("check")
        .env("INTERPRETERD_DATA_DIR", folder.path().join("data"))
        .env("INTERPRETERD_DEFAULT_PROVIDER", "pydantic")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find(|line| line.starts_with("ok       provider pydantic: "));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("Python 3.14") && line.contains("network: none"), "{line}");
    assert!(said.ends_with("serve would start\n"), "{said}");
}

/// All that is installed, by links, without one part of this provider's.
fn without(part: &str, to: &Path) {
    let own = installed();
    for entry in fs::read_dir(guests()).unwrap().map(|entry| entry.unwrap()) {
        if entry.path() != own {
            symlink(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    let target = to.join(own.file_name().unwrap());
    fs::create_dir(&target).unwrap();
    for entry in fs::read_dir(&own).unwrap().map(|entry| entry.unwrap()) {
        let place = target.join(entry.file_name());
        if entry.file_name() != "pyodide" {
            symlink(entry.path(), place).unwrap();
            continue;
        }
        fs::create_dir(&place).unwrap();
        for inner in fs::read_dir(entry.path()).unwrap().map(|inner| inner.unwrap()) {
            symlink(inner.path(), place.join(inner.file_name())).unwrap();
        }
    }
    fs::remove_file(target.join(part)).unwrap();
}

#[tokio::test]
async fn a_part_that_is_missing_is_named_with_what_to_do() {
    for (part, words) in [
        ("guest.json", "no Deno and Pyodide in "),
        ("pyodide/pyodide.asm.wasm", "Pyodide's program (pyodide.asm.wasm) is missing in "),
    ] {
        let folder = open_folder();
        without(part, folder.path());
        let server = Server::start(&[("GUEST_DIR", folder.path().to_str().unwrap())]);
        let caller = server.caller();
        let answer = caller.post("/v1/sessions", json!({"provider": "pydantic"})).await;
        assert_eq!(problem(&answer), (503, "provider_not_ready".into()));
        let (_, providers) = caller.get("/v1/providers").await;
        let all = providers["data"].as_array().unwrap();
        let provider = all.iter().find(|provider| provider["name"] == "pydantic").unwrap();
        let reason = provider["reason"].as_str().unwrap();
        let is_told =
            reason.contains(words) && reason.contains("guest install --provider pydantic");
        assert!(is_told, "{reason}");
        assert_eq!(caller.session().await.text("6 * 7").await, "42", "others work");
    }
}
