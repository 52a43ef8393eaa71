//! What the code interpreter says while it runs: lines of JSON, hostile input. Pure.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::domain::weight::{OBJECT_BYTES, weigh};

/// The longest line that is read: a picture is one line, and so is a large print.
const MAX_LINE_BYTES: usize = 32 << 20;
/// What the values of a line may take once they are parsed.
const MAX_PARSED_BYTES: usize = 64 << 20;
/// Less than what a store can read again once it is wrapped.
const MAX_DEPTH: usize = 60;
/// Larger buffers are not kept between lines.
const KEPT_BUFFER_BYTES: usize = 256 << 10;

/// One line. Unknown kinds and fields are passed over.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Line {
    NumberOfExecutions {
        #[serde(default)]
        execution_count: u32,
    },
    Stdout {
        #[serde(default)]
        text: String,
    },
    Stderr {
        #[serde(default)]
        text: String,
    },
    Result(Box<Shown>),
    Error {
        #[serde(default)]
        name: String,
        #[serde(default)]
        value: String,
        #[serde(default)]
        traceback: String,
    },
    Keepalive,
    EndOfExecution,
    #[serde(other)]
    Unknown,
}

/// A rich result: a field for each kind that E2B knows, and `extra` for all others.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Shown {
    #[serde(default)]
    pub(super) is_main_result: bool,
    #[serde(default)]
    pub(super) extra: Map<String, Value>,
    #[serde(flatten)]
    pub(super) kinds: Map<String, Value>,
}

/// What came of one line.
#[derive(Debug, PartialEq)]
pub(super) enum Read {
    /// A line and what it takes: its length, or its parts where they take more.
    Line(Line, usize),
    /// The same; parts of it that no text can hold were replaced.
    Lossy(Line, usize),
    /// A line that could not be read, or was too long: it is not kept.
    Dropped,
}

/// Puts lines together from pieces.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// Where the line that comes next begins.
    start: usize,
    /// Where the search for its end goes on.
    searched: usize,
    /// The line that is coming in is longer than lines may be.
    skips: bool,
}

impl Lines {
    pub(super) fn push(&mut self, piece: &[u8]) {
        // once a piece, not once a line: a piece may hold hundreds
        self.buffer.drain(..self.start);
        self.searched -= std::mem::take(&mut self.start);
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole line.
    pub(super) fn next(&mut self) -> Option<Read> {
        loop {
            let rest = &self.buffer[self.searched..];
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                if self.buffer.len() - self.start > MAX_LINE_BYTES {
                    self.skips = true;
                    (self.buffer, self.start, self.searched) = (Vec::new(), 0, 0);
                }
                return None;
            };
            let end = self.searched + end;
            let skipped = std::mem::take(&mut self.skips);
            let read =
                if skipped { Some(Read::Dropped) } else { read(&self.buffer[self.start..end]) };
            (self.start, self.searched) = (end + 1, end + 1);
            if read.is_some() {
                return read;
            }
        }
    }
}

/// One line without its end; None for an empty one.
fn read(line: &[u8]) -> Option<Read> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return None;
    }
    let weight = weigh(line);
    if line.len() > MAX_LINE_BYTES
        || weight.parsed_bytes > MAX_PARSED_BYTES
        || weight.depth > MAX_DEPTH
    {
        return Some(Read::Dropped);
    }
    let bytes = line.len().max(weight.parsed_bytes - OBJECT_BYTES.min(weight.parsed_bytes));
    if let Ok(read) = serde_json::from_slice(line) {
        return Some(Read::Line(read, bytes));
    }
    let repaired = without_lone_surrogates(&String::from_utf8_lossy(line));
    Some(match serde_json::from_str(&repaired) {
        Ok(read) => Read::Lossy(read, bytes),
        Err(_) => Read::Dropped,
    })
}

/// JSON whose escapes of halves of characters are replaced: no text can hold them.
fn without_lone_surrogates(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        whole.push_str(&rest[..at]);
        rest = &rest[at..];
        let unit = |text: &str| {
            let digits = text.strip_prefix("\\u")?.get(..4)?;
            u16::from_str_radix(digits, 16).ok()
        };
        let taken = match unit(rest) {
            Some(0xD800..=0xDBFF) => match rest.get(6..).and_then(unit) {
                Some(0xDC00..=0xDFFF) => 12,
                _ => 0,
            },
            Some(0xDC00..=0xDFFF) => 0,
            Some(_) => 6,
            // an escape of one character, which may be a backslash
            None => rest.char_indices().nth(2).map_or(rest.len(), |(end, _)| end),
        };
        if taken == 0 {
            whole.push('\u{FFFD}');
            rest = &rest[6..];
        } else {
            whole.push_str(&rest[..taken]);
            rest = &rest[taken..];
        }
    }
    whole + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(pieces: &[&[u8]]) -> Vec<Read> {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for piece in pieces {
            lines.push(piece);
            found.extend(std::iter::from_fn(|| lines.next()));
        }
        found
    }

    const SAMPLE: &str = concat!(
        r#"{"type": "number_of_executions", "execution_count": 2}"#,
        "\n",
        r#"{"type": "stdout", "text": "h\u00e9 \ud83d\ude00\n", "timestamp": "2026"}"#,
        "\n\n",
        r#"{"type": "result", "text": "2", "png": "iV", "extra": {"a/b": 1}, "is_main_result": true}"#,
        "\n",
        r#"{"type": "keepalive"}"#,
        "\n",
        r#"{"type": "something_new", "x": 1}"#,
        "\n",
        r#"{"type": "end_of_execution"}"#,
        "\n"
    );

    fn without_length(read: Read) -> Line {
        match read {
            Read::Line(line, _) => line,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_are_read_as_documented() {
        let lines: Vec<Line> = all(&[SAMPLE.as_bytes()]).into_iter().map(without_length).collect();
        let shown = Shown {
            is_main_result: true,
            extra: Map::from_iter([("a/b".to_owned(), 1.into())]),
            kinds: Map::from_iter([
                ("text".to_owned(), "2".into()),
                ("png".to_owned(), "iV".into()),
            ]),
        };
        let expected = [
            Line::NumberOfExecutions { execution_count: 2 },
            Line::Stdout { text: "hé 😀\n".to_owned() },
            Line::Result(Box::new(shown)),
            Line::Keepalive,
            Line::Unknown,
            Line::EndOfExecution,
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn one_bad_line_costs_that_line_alone() {
        let text =
            "nonsense\n{\"type\": \"stdout\", \"text\": 1}\n[1]\n{\"type\": \"keepalive\"}\n";
        let keepalive = Read::Line(Line::Keepalive, 32);
        let found = all(&[text.as_bytes()]);
        assert_eq!(found, [Read::Dropped, Read::Dropped, Read::Dropped, keepalive]);
    }

    #[test]
    fn halves_of_characters_are_replaced_and_the_rest_stays() {
        let line = r#"{"type": "stdout", "text": "a\\ud800 \ud800\ud83d\ude00\udc00\"é"}"#;
        let text = "a\\ud800 \u{FFFD}😀\u{FFFD}\"é".to_owned();
        let found = all(&[line.as_bytes(), b"\n"]);
        assert_eq!(found, [Read::Lossy(Line::Stdout { text }, line.len())]);
    }

    #[test]
    fn a_line_that_is_too_long_or_too_deep_is_not_kept() {
        let long = vec![b'x'; MAX_LINE_BYTES + 1];
        let end = b"xx\n{\"type\": \"keepalive\"}\n";
        assert_eq!(all(&[&long, end]), [Read::Dropped, Read::Line(Line::Keepalive, 32)]);
        let deep = format!("{}{}\n", "[".repeat(100), "]".repeat(100));
        assert_eq!(all(&[deep.as_bytes()]), [Read::Dropped]);
    }

    #[test]
    fn many_small_parts_count_as_what_they_take() {
        let line = format!("{{\"type\": \"result\", \"json\": [{}1]}}\n", "1,".repeat(10_000));
        let [Read::Line(_, bytes)] = all(&[line.as_bytes()])[..] else { panic!("a line") };
        assert!(bytes > 10 * line.len(), "{bytes}");
    }

    proptest! {
        #[test]
        fn pieces_may_be_cut_anywhere(cuts in prop::collection::vec(0usize..SAMPLE.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let (mut pieces, mut start) = (Vec::new(), 0);
            for cut in cuts {
                pieces.push(&SAMPLE.as_bytes()[start..cut]);
                start = cut;
            }
            pieces.push(&SAMPLE.as_bytes()[start..]);
            prop_assert_eq!(all(&pieces), all(&[SAMPLE.as_bytes()]));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            all(&[&bytes, b"\n"]);
        }
    }
}
