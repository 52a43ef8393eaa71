//! What a cell prints, kept within bounds; the same for every provider. Pure.

use crate::domain::event::{Event, OutputSink};
use crate::domain::execution::Execution;

/// Rich results of one cell together.
pub(super) const MAX_OUTPUTS_BYTES: usize = 16 << 20;

/// The start and the end of a stream, byte-exact while it is no longer than its cap.
#[derive(Debug)]
pub(super) struct Capture {
    cap: usize,
    head: Vec<u8>,
    /// A ring once it is full; `oldest` is where it starts.
    tail: Vec<u8>,
    oldest: usize,
    total: u64,
    /// An unfinished character at the end of what listeners have been sent.
    pending: Vec<u8>,
}

impl Capture {
    pub(super) fn new(cap: usize) -> Self {
        Self { cap, head: Vec::new(), tail: Vec::new(), oldest: 0, total: 0, pending: Vec::new() }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = self.cap / 2 - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        let ring = self.cap - self.cap / 2;
        bytes = &rest[rest.len().saturating_sub(ring)..];
        let (fill, over) = bytes.split_at((ring - self.tail.len()).min(bytes.len()));
        self.tail.extend_from_slice(fill);
        let (first, second) = over.split_at((ring - self.oldest).min(over.len()));
        self.tail[self.oldest..self.oldest + first.len()].copy_from_slice(first);
        self.tail[..second.len()].copy_from_slice(second);
        self.oldest = (self.oldest + over.len()) % ring;
    }

    /// Counts bytes that somebody else has left out.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.total = self.total.saturating_add(bytes);
    }

    /// The same bytes for listeners, whole characters only.
    pub(super) fn piece(&mut self, bytes: &[u8]) -> Option<String> {
        self.pending.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.pending) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.pending.len(),
        };
        let rest = self.pending.split_off(whole);
        let piece = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending = rest;
        (!piece.is_empty()).then_some(piece)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.total == 0
    }

    fn is_cut(&self) -> bool {
        self.total > self.cap as u64
    }

    /// The text, and whether bytes had to be replaced.
    pub(super) fn into_text(mut self) -> (String, bool) {
        self.tail.rotate_left(self.oldest);
        if !self.is_cut() {
            self.head.extend_from_slice(&self.tail);
            return text(self.head);
        }
        let missing = self.total - (self.head.len() + self.tail.len()) as u64;
        self.head.truncate(whole_characters(&self.head));
        let start = self.tail.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
        let (head, head_lossy) = text(self.head);
        let (tail, tail_lossy) = text(self.tail.split_off(start));
        (format!("{head}\n[... {missing} bytes not kept ...]\n{tail}"), head_lossy || tail_lossy)
    }
}

fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

fn text(bytes: Vec<u8>) -> (String, bool) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, false),
        Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), true),
    }
}

/// Which of the two pipes bytes came from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// A stream of which somebody else has kept both ends.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) head: Vec<u8>,
    pub(super) tail: Vec<u8>,
    /// How long it was.
    pub(super) bytes: u64,
}

impl Ends {
    /// What of it comes after so many bytes, as far as it was kept.
    pub(super) fn after(&self, bytes: u64) -> [&[u8]; 2] {
        let from = |kept: &'_ [u8], first: u64| {
            let start = usize::try_from(bytes.saturating_sub(first)).unwrap_or(usize::MAX);
            start.min(kept.len())
        };
        let tail_first = self.bytes.saturating_sub(self.tail.len() as u64);
        [&self.head[from(&self.head, 0)..], &self.tail[from(&self.tail, tail_first)..]]
    }
}

/// Both streams of a cell, on their way to listeners too.
#[derive(Debug)]
pub(super) struct Streams {
    stdout: Capture,
    stderr: Capture,
}

impl Streams {
    pub(super) fn new(cap: usize) -> Self {
        Self { stdout: Capture::new(cap), stderr: Capture::new(cap) }
    }

    pub(super) fn push(&mut self, stream: Stream, bytes: &[u8], sink: &OutputSink) {
        let capture = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        capture.push(bytes);
        if sink.is_read()
            && let Some(text) = capture.piece(bytes)
        {
            sink.send(match stream {
                Stream::Stdout => Event::Stdout { text },
                Stream::Stderr => Event::Stderr { text },
            });
        }
    }

    /// Takes a stream of which somebody else has kept both ends.
    pub(super) fn set(&mut self, stream: Stream, ends: &Ends) {
        let capture = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        capture.push(&ends.head);
        capture.skip(ends.bytes.saturating_sub((ends.head.len() + ends.tail.len()) as u64));
        capture.push(&ends.tail);
    }

    /// What went to stdout, where that is all that is wanted.
    pub(super) fn into_stdout(self) -> String {
        self.stdout.into_text().0
    }

    /// What went to stderr, where that is all that is wanted.
    pub(super) fn into_stderr(self) -> String {
        self.stderr.into_text().0
    }

    /// Puts what was printed into the execution.
    pub(super) fn finish(self, execution: &mut Execution) {
        execution.stdout_bytes = self.stdout.total;
        execution.stderr_bytes = self.stderr.total;
        execution.truncated |= self.stdout.is_cut() || self.stderr.is_cut();
        let (stdout, stdout_lossy) = self.stdout.into_text();
        let (stderr, stderr_lossy) = self.stderr.into_text();
        execution.stdout = stdout;
        execution.stderr = stderr;
        execution.lossy |= stdout_lossy || stderr_lossy;
    }
}

/// A text within its limit, its end cut off between two characters.
pub(super) fn cut_text(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_stream_is_exact_up_to_its_cap_and_keeps_both_ends_beyond(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12),
            cap in 2usize..80,
        ) {
            let mut capture = Capture::new(cap);
            for piece in &pieces {
                capture.push(piece);
            }
            let all = pieces.concat();
            prop_assert_eq!(capture.total, all.len() as u64);
            let mut kept = capture.head.clone();
            let mut tail = capture.tail.clone();
            tail.rotate_left(capture.oldest);
            if all.len() <= cap {
                kept.extend(tail);
                prop_assert_eq!(kept, all);
            } else {
                prop_assert_eq!(kept.as_slice(), &all[..cap / 2]);
                prop_assert_eq!(tail.as_slice(), &all[all.len() - (cap - cap / 2)..]);
            }
        }

        #[test]
        fn listeners_get_the_text_whole_however_it_is_cut(text in "\\PC{0,20}", cut in 0usize..40) {
            let mut capture = Capture::new(1000);
            let (first, second) = text.as_bytes().split_at(cut.min(text.len()));
            let pieces = [capture.piece(first), capture.piece(second)];
            prop_assert_eq!(pieces.into_iter().flatten().collect::<String>(), text);
        }
    }

    #[test]
    fn a_stream_that_somebody_else_has_cut_is_told_as_one_that_was_cut_here() {
        let all: Vec<u8> = (b'a'..=b'z').collect();
        let mut here = Streams::new(8);
        here.push(Stream::Stdout, &all, &OutputSink::discard());
        let mut elsewhere = Streams::new(8);
        let (head, tail) = (all[..4].to_vec(), all[22..].to_vec());
        let ends = Ends { head, tail, bytes: 26 };
        elsewhere.set(Stream::Stdout, &ends);
        assert_eq!(elsewhere.stdout.total, 26);
        assert_eq!(elsewhere.into_stdout(), here.into_stdout());
        for (told, rest) in
            [(0, ["abcd", "wxyz"]), (3, ["d", "wxyz"]), (24, ["", "yz"]), (99, ["", ""])]
        {
            assert_eq!(ends.after(told), rest.map(str::as_bytes), "{told}");
        }
    }

    #[test]
    fn a_cut_stream_says_how_much_is_missing_and_splits_no_character() {
        let mut capture = Capture::new(8);
        capture.push("éééééééééé".as_bytes());
        let (text, lossy) = capture.into_text();
        assert_eq!(text, "éé\n[... 12 bytes not kept ...]\néé");
        assert!(!lossy);
    }
}
