//! What the model is told of its calls: plain text, in a fixed order. Pure.

use serde_json::Value;

use crate::domain::execution::{Execution, ExecutionStatus};
use crate::domain::file::FileEntry;
use crate::llm::conversation::{ToolCall, ToolResult};

/// Characters of one stream that are fed back, half from its start and half from its end.
const MAX_STREAM: usize = 20_000;
/// Characters of the last expression's value that are fed back.
const MAX_VALUE: usize = 10_000;
/// Lines of a traceback that are fed back: its first ones and its last ones.
const TRACEBACK_HEAD: usize = 4;
const TRACEBACK_TAIL: usize = 24;
const MAX_FILES: usize = 50;

/// The result of a call that was not run.
pub(super) fn refused(call: &ToolCall, why: &str) -> ToolResult {
    complaint(call, format!("not run: {why}"))
}

/// The result of a call that cannot be read.
pub(super) fn complaint(call: &ToolCall, why: String) -> ToolResult {
    ToolResult {
        call_id: call.id.clone(),
        text: format!("status: error\n{why}\n"),
        images: Vec::new(),
        is_error: true,
    }
}

/// True when the code looked for a file that is not there.
pub(super) fn lacks_a_file(execution: &Execution) -> bool {
    let told = execution.error_detail.as_ref();
    told.is_some_and(|detail| {
        detail.name == "FileNotFoundError" || detail.message.contains("No such file or directory")
    })
}

/// An execution as the model is told of it; `there` are the files that there are, for one that it
/// did not find.
pub(super) fn told(execution: &Execution, notes: &[String], there: Option<&[FileEntry]>) -> String {
    let status = match execution.status {
        ExecutionStatus::Success => "ok",
        ExecutionStatus::Error => "error",
        ExecutionStatus::Timeout => "timeout",
        ExecutionStatus::Unknown => {
            "unknown: the code may or may not have run; do not simply run it again"
        }
    };
    let mut text = format!("status: {status}\n");
    let mut part = |name: &str, content: &str, most: usize| {
        if !content.is_empty() {
            text.push_str(&format!("{name}:\n{}\n", shown(content, most)));
        }
    };
    part("result", execution.value().unwrap_or_default(), MAX_VALUE);
    part("stdout", &execution.stdout, MAX_STREAM);
    part("stderr", &execution.stderr, MAX_STREAM);
    let error = traceback(execution.error.as_deref().unwrap_or_default());
    part("error", &error, MAX_STREAM);
    for note in notes {
        text.push_str(&format!("{note}\n"));
    }
    if execution.state_lost {
        text.push_str("All variables and imports are lost: the interpreter was started anew.\n");
    }
    if execution.files_lost {
        text.push_str("All files are lost: the sandbox was made anew.\n");
    }
    let made = execution.files.iter().map(|file| (file.path.as_str(), file.size_bytes));
    list(&mut text, "files created or changed:", made);
    if let Some(there) = there {
        let there = there.iter().map(|file| (file.path.as_str(), file.size_bytes));
        if there.len() == 0 {
            text.push_str("There are no files in the working folder.\n");
        }
        list(&mut text, "files in the working folder:", there);
    }
    text
}

fn list<'a>(text: &mut String, title: &str, files: impl ExactSizeIterator<Item = (&'a str, u64)>) {
    let count = files.len();
    if count > 0 {
        text.push_str(&format!("{title}\n"));
    }
    for (path, size_bytes) in files.take(MAX_FILES) {
        // quoted as JSON, so that no name can look like anything but a name
        text.push_str(&format!("- {} ({size_bytes} bytes)\n", Value::from(path)));
    }
    if count > MAX_FILES {
        text.push_str(&format!("- and {} more\n", count - MAX_FILES));
    }
}

/// The frames where it began and where it ended; between them, deep ones say little.
fn traceback(error: &str) -> String {
    let lines: Vec<&str> = error.lines().collect();
    if lines.len() <= TRACEBACK_HEAD + TRACEBACK_TAIL {
        return error.to_owned();
    }
    let tail = lines.len() - TRACEBACK_TAIL;
    format!(
        "{}\n[... {} lines cut ...]\n{}",
        lines[..TRACEBACK_HEAD].join("\n"),
        tail - TRACEBACK_HEAD,
        lines[tail..].join("\n")
    )
}

/// A text as it is shown. Of a very long one, only the ends are looked at.
fn shown(text: &str, most: usize) -> String {
    // a character has four bytes at most, and escapes take some more
    let looked_at = most * 16;
    if text.len() <= 2 * looked_at {
        return shortened(&plain(text), most);
    }
    let (from, to) =
        (text.floor_char_boundary(looked_at), text.ceil_char_boundary(text.len() - looked_at));
    let (head, tail) = (plain(&text[..from]), plain(&text[to..]));
    let head: String = head.chars().take(most / 2).collect();
    let tail = tail.trim_end_matches('\n');
    let count = tail.chars().count();
    let tail: String = tail.chars().skip(count.saturating_sub(most / 2)).collect();
    format!(
        "{head}\n[... about {} characters cut ...]\n{tail}",
        text.len() - head.len() - tail.len()
    )
}

/// Without terminal escapes, and with each line as a carriage return left it.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => {
                if characters.next_if_eq(&'[').is_some() {
                    while characters.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
                }
            }
            '\r' if characters.peek().is_none_or(|next| *next == '\n') => {}
            '\r' => out.truncate(out.rfind('\n').map_or(0, |end| end + 1)),
            other => out.push(other),
        }
    }
    out
}

fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.trim_end_matches('\n').to_owned();
    }
    let head: String = text.chars().take(most / 2).collect();
    let tail: String = text.chars().skip(count - most / 2).collect();
    format!(
        "{head}\n[... {} characters cut ...]\n{}",
        count - most / 2 * 2,
        tail.trim_end_matches('\n')
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_view_is_plain() {
        assert_eq!(plain("a\u{1b}[31mred\u{1b}[0m"), "ared");
        assert_eq!(plain("x\n\r0\r1\r2"), "x\n2");
        assert_eq!(plain("a\r\nb"), "a\nb");
        assert_eq!(shortened("abcdefghij", 4), "ab\n[... 6 characters cut ...]\nij");
        let long = format!("ab{}yz\n", "\u{e9}".repeat(1000));
        assert_eq!(shown(&long, 4), "ab\n[... about 2001 characters cut ...]\nyz");
    }

    #[test]
    fn a_long_traceback_keeps_its_first_and_last_lines() {
        let error: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let short = traceback(&error.join("\n"));
        assert!(short.starts_with("0\n1\n2\n3\n[... 72 lines cut ...]\n76\n"), "{short}");
        assert!(short.ends_with("\n99"));
        assert_eq!(traceback("a\nb"), "a\nb");
    }
}
