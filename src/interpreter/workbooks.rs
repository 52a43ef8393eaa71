//! The first rows of attached workbooks, read in the sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use super::heads::{Heads, plain};
use super::{Place, Task};
use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Language};
use crate::domain::file::{FileEntry, FilePath};
use crate::domain::id::ExecutionId;
use crate::sandbox::execute_until;

/// A workbook is hostile input like any other, so it is opened where its harm ends.
const PROGRAM: &str = include_str!("workbook_heads.py");
const ENDINGS: [&str; 2] = [".xlsx", ".xlsm"];
const MAX_WORKBOOKS: usize = 5;
/// Larger ones take long to open.
const MAX_BYTES: u64 = 5 << 20;
const MAX_LINES: usize = 20;
const TIME: Duration = Duration::from_secs(3);

/// Adds the heads of the workbooks among the attached files. What cannot be read has none.
pub(super) async fn read(task: &Task, place: &Place<'_>, files: &[FileEntry], heads: &mut Heads) {
    let is_workbook = |name: &str| {
        let name = name.to_ascii_lowercase();
        ENDINGS.iter().any(|ending| name.ends_with(ending))
    };
    let small = |name: &&str| {
        files.iter().any(|file| file.path == **name && (1..=MAX_BYTES).contains(&file.size_bytes))
    };
    let attached = task.attached.iter().map(FilePath::as_str);
    let names: Vec<&str> =
        attached.filter(|name| is_workbook(name)).filter(small).take(MAX_WORKBOOKS).collect();
    if names.is_empty() || !place.session.capabilities.shell {
        return;
    }
    let listed = serde_json::json!(names).to_string();
    let cell = Cell {
        id: ExecutionId::new(),
        run_id: task.run_id,
        session_id: task.session_id,
        code: "python3 -".to_owned(),
        language: Language::Shell,
        timeout: TIME,
        env: BTreeMap::from([("INTERPRETERD_WORKBOOKS".to_owned(), listed)]),
        stdin: Some(PROGRAM.to_owned()),
    };
    let sink = OutputSink::discard();
    let Ok(execution) = execute_until(place.sandbox, &cell, &sink, place.cancel).await else {
        return;
    };
    for line in execution.stdout.lines() {
        let Ok((name, lines)) = serde_json::from_str::<(String, Vec<String>)>(line) else {
            continue;
        };
        if names.contains(&name.as_str()) {
            heads.insert(name, lines.iter().take(MAX_LINES).map(|line| plain(line)).collect());
        }
    }
}
