//! The first lines of attached tables.

use std::collections::BTreeMap;

use futures::StreamExt;

use crate::domain::file::{FileEntry, FilePath, Part};
use crate::sandbox::Sandbox;

/// Tables that are looked into.
const MAX_TABLES: usize = 10;
/// What is read of one.
const MAX_BYTES: u64 = 4096;
const MAX_LINES: usize = 5;
const MAX_LINE: usize = 300;
/// Tables that are text, by the endings of their names.
const TABLES: [&str; 6] = ["csv", "tsv", "tab", "json", "jsonl", "ndjson"];

/// The first lines of tables by path.
pub(super) type Heads = BTreeMap<String, Vec<String>>;

/// Reads the heads of the tables among the attached files. What cannot be read has none.
pub(super) async fn read(
    sandbox: &dyn Sandbox,
    files: &[FileEntry],
    attached: &[FilePath],
) -> Heads {
    let mut heads = Heads::new();
    for path in attached.iter().filter(|path| is_table(path)).take(MAX_TABLES) {
        let Some(entry) = files.iter().find(|file| file.path == path.as_str()) else { continue };
        if let Some(bytes) = first_bytes(sandbox, path, entry).await {
            heads.insert(entry.path.clone(), lines(&bytes, entry.size_bytes));
        }
    }
    heads
}

fn is_table(path: &FilePath) -> bool {
    let ending = path.name().rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    ending.is_some_and(|ending| TABLES.contains(&ending.as_str()))
}

async fn first_bytes(sandbox: &dyn Sandbox, path: &FilePath, entry: &FileEntry) -> Option<Vec<u8>> {
    if entry.size_bytes == 0 {
        return None;
    }
    let last = entry.size_bytes.min(MAX_BYTES) - 1;
    let part = Part::From(0, Some(last));
    let (_, mut content) = sandbox.read_file(path, part).await.ok()?;
    let mut bytes = Vec::new();
    while let Some(piece) = content.next().await {
        bytes.extend_from_slice(&piece.ok()?);
        if bytes.len() as u64 > last {
            break;
        }
    }
    Some(bytes)
}

/// The first lines, without one that is cut off.
fn lines(bytes: &[u8], size_bytes: u64) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches('\u{feff}');
    let whole = bytes.len() as u64 >= size_bytes;
    let mut lines: Vec<&str> = text.lines().collect();
    if !whole && lines.len() > 1 {
        lines.pop();
    }
    lines.iter().take(MAX_LINES).map(|line| plain(line)).collect()
}

/// A line as it is shown.
pub(super) fn plain(line: &str) -> String {
    let plain = line.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c });
    let mut shown: String = plain.take(MAX_LINE).collect();
    if line.chars().nth(MAX_LINE).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_a_few_whole_lines() {
        assert_eq!(lines(b"\xef\xbb\xbfa,b\r\n1,2\n", 12), ["a,b", "1,2"]);
        assert_eq!(lines(b"a\n1\n2\n3\n4\n5\n6\n", 14).len(), MAX_LINES);
        assert_eq!(lines(b"a,b\n1,", 100), ["a,b"], "a line that is cut off is not shown");
        let long = "x".repeat(4096);
        assert_eq!(lines(long.as_bytes(), 9999)[0].chars().count(), MAX_LINE + 1);
        assert_eq!(lines(b"a\x1b[31m\n\xff\n", 9), ["a\u{fffd}[31m", "\u{fffd}"]);
    }

    #[test]
    fn tables_are_told_by_their_names() {
        let table = |name: &str| is_table(&FilePath::new(name).expect("a path"));
        assert!(table("a.CSV") && table("x/y.jsonl") && !table("a.xlsx") && !table("csv"));
    }
}
