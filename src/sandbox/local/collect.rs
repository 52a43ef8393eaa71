//! What a cell puts out, gathered within bounds: pure.

use super::frames::{DoneStatus, KernelFrame};
use crate::domain::event::{Event, OutputSink};
use crate::domain::execution::{ErrorDetail, Execution, ExecutionStatus, Output};

/// Rich results of one cell together.
const MAX_OUTPUTS_BYTES: usize = 16 << 20;
/// Frames of one cell that are kept; at [`ABUSE`] times as many the session is ended.
const MAX_FRAMES: usize = 10_000;
/// Bytes in frames of one cell that are kept.
const MAX_FRAME_BYTES: usize = 64 << 20;
const ABUSE: usize = 4;
const MAX_NAME_BYTES: usize = 1024;
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
const MAX_TRACEBACK_BYTES: usize = 256 * 1024;
/// Output of earlier cells' threads that is kept.
const MAX_LATE_BYTES: usize = 64 * 1024;

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

    fn is_cut(&self) -> bool {
        self.total > self.cap as u64
    }

    /// The text, and whether bytes had to be replaced.
    fn into_text(mut self) -> (String, bool) {
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

/// Gathers one cell.
#[derive(Debug)]
pub(super) struct Collector {
    late: Capture,
    stdout: Capture,
    stderr: Capture,
    outputs: Vec<Shown>,
    outputs_bytes: usize,
    frames: usize,
    frame_bytes: usize,
    dropped: bool,
    clear_on_next: bool,
    error: Option<ErrorDetail>,
}

/// A rich result, what it takes, and the name under which a program may replace it.
#[derive(Debug)]
struct Shown {
    output: Output,
    id: Option<String>,
    bytes: usize,
}

/// The kernel sends more than any program has reason to.
#[derive(Debug)]
pub(super) struct Abuse;

impl Collector {
    pub(super) fn new(output_cap: usize) -> Self {
        Self {
            late: Capture::new(MAX_LATE_BYTES),
            stdout: Capture::new(output_cap),
            stderr: Capture::new(output_cap),
            outputs: Vec::new(),
            outputs_bytes: 0,
            frames: 0,
            frame_bytes: 0,
            dropped: false,
            clear_on_next: false,
            error: None,
        }
    }

    /// What came before the cell was handed over.
    pub(super) fn late(&mut self, bytes: &[u8]) {
        self.late.push(bytes);
    }

    pub(super) fn stream(&mut self, stream: Stream, bytes: &[u8], sink: &OutputSink) {
        let capture = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        capture.push(bytes);
        if sink.is_read()
            && let Some(piece) = capture.piece(bytes)
        {
            sink.send(match stream {
                Stream::Stdout => Event::Stdout { text: piece },
                Stream::Stderr => Event::Stderr { text: piece },
            });
        }
    }

    /// Counts a frame, of this cell or not.
    pub(super) fn count(&mut self, bytes: usize) -> Result<(), Abuse> {
        self.frames += 1;
        self.frame_bytes += bytes;
        let abuse = self.frames > MAX_FRAMES * ABUSE || self.frame_bytes > MAX_FRAME_BYTES * ABUSE;
        if abuse { Err(Abuse) } else { Ok(()) }
    }

    /// Takes a frame of this cell that has been counted and is not its end.
    pub(super) fn frame(&mut self, frame: KernelFrame, bytes: usize, sink: &OutputSink) {
        if self.frames > MAX_FRAMES || self.frame_bytes > MAX_FRAME_BYTES {
            self.dropped = true;
            return;
        }
        match frame {
            KernelFrame::Display { data, metadata, display_id, update, cut, .. } => {
                self.dropped |= !cut.is_empty();
                self.display(
                    Output { data, metadata, main: false },
                    display_id,
                    update,
                    bytes,
                    sink,
                );
            }
            KernelFrame::Result { data, metadata, cut, .. } => {
                self.dropped |= !cut.is_empty();
                self.display(Output { data, metadata, main: true }, None, false, bytes, sink);
            }
            KernelFrame::Error { ename, evalue, traceback, line, .. } => {
                self.error = Some(ErrorDetail {
                    name: cut_text(ename, MAX_NAME_BYTES),
                    message: cut_text(evalue, MAX_MESSAGE_BYTES),
                    traceback: cut_text(traceback, MAX_TRACEBACK_BYTES),
                    line,
                });
            }
            KernelFrame::Clear { .. } => self.clear_on_next = true,
            KernelFrame::Dropped { .. } => self.dropped = true,
            KernelFrame::Hello {} | KernelFrame::Done { .. } | KernelFrame::Unknown => {}
        }
    }

    fn display(
        &mut self,
        output: Output,
        id: Option<String>,
        update: bool,
        bytes: usize,
        sink: &OutputSink,
    ) {
        if std::mem::take(&mut self.clear_on_next) {
            self.outputs.clear();
            self.outputs_bytes = 0;
        }
        if sink.is_read() {
            sink.send(Event::Output(output.clone()));
        }
        if update {
            self.replace(&output, id.as_deref(), bytes);
        } else if self.outputs_bytes + bytes > MAX_OUTPUTS_BYTES {
            self.dropped = true;
        } else {
            self.outputs_bytes += bytes;
            self.outputs.push(Shown { output, id, bytes });
        }
    }

    /// Puts an output in place of those that bear its name, while there is room for it.
    fn replace(&mut self, output: &Output, id: Option<&str>, bytes: usize) {
        for shown in
            self.outputs.iter_mut().filter(|shown| id.is_some() && shown.id.as_deref() == id)
        {
            if self.outputs_bytes - shown.bytes + bytes > MAX_OUTPUTS_BYTES {
                self.dropped = true;
                return;
            }
            self.outputs_bytes = self.outputs_bytes - shown.bytes + bytes;
            shown.output = output.clone();
            shown.bytes = bytes;
        }
    }

    /// Puts what was gathered into the execution: streams, outputs and the code's own error.
    pub(super) fn finish(self, execution: &mut Execution) {
        execution.stdout_bytes = self.stdout.total;
        execution.stderr_bytes = self.stderr.total;
        execution.truncated |= self.dropped || self.stdout.is_cut() || self.stderr.is_cut();
        let late_any = self.late.total > 0;
        let (stdout, stdout_lossy) = self.stdout.into_text();
        let (stderr, stderr_lossy) = self.stderr.into_text();
        let (late, late_lossy) = self.late.into_text();
        execution.stdout = stdout;
        execution.stderr = stderr;
        execution.lossy = stdout_lossy || stderr_lossy || late_lossy;
        execution.late_output = late_any.then_some(late);
        execution.outputs = self.outputs.into_iter().map(|shown| shown.output).collect();
        execution.error_detail = self.error;
    }
}

/// A text within its limit, its end cut off between two characters.
fn cut_text(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

/// Puts the kernel's word on how the cell ended into the execution.
pub(super) fn settle(
    execution: &mut Execution,
    status: DoneStatus,
    count: Option<u32>,
    exit_code: Option<i32>,
) {
    execution.execution_count = count;
    match status {
        DoneStatus::Ok => {
            execution.status = ExecutionStatus::Success;
            execution.exit_code = Some(0);
            execution.error_detail = None;
        }
        DoneStatus::Error | DoneStatus::Interrupted => {
            execution.status = ExecutionStatus::Error;
            execution.exit_code =
                Some(exit_code.filter(|code| (0..=255).contains(code)).unwrap_or(1));
        }
    }
    execution.error = match &execution.error_detail {
        Some(detail) => Some(detail.traceback.clone()),
        None if execution.status == ExecutionStatus::Error => {
            Some(format!("exit code {}", execution.exit_code.unwrap_or(1)))
        }
        None => None,
    };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;

    /// A MIME bundle with one text in it.
    fn plain(text: &str) -> Map<String, Value> {
        Map::from_iter([("text/plain".to_owned(), Value::from(text))])
    }

    fn display(text: &str, id: Option<&str>, update: bool) -> KernelFrame {
        KernelFrame::Display {
            id: None,
            data: plain(text),
            metadata: Map::new(),
            display_id: id.map(str::to_owned),
            update,
            cut: Vec::new(),
        }
    }

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
    fn a_cut_stream_says_how_much_is_missing_and_splits_no_character() {
        let mut capture = Capture::new(8);
        capture.push("éééééééééé".as_bytes());
        let (text, lossy) = capture.into_text();
        assert_eq!(text, "éé\n[... 12 bytes not kept ...]\néé");
        assert!(!lossy);
    }

    #[test]
    fn displays_are_updated_and_cleared_as_the_program_says() {
        let mut collector = Collector::new(100);
        let sink = OutputSink::discard();
        for frame in [
            display("a", Some("x"), false),
            display("b", None, false),
            display("c", Some("x"), true),
            display("d", None, true),
        ] {
            collector.frame(frame, 1, &sink);
        }
        let shown: Vec<_> =
            collector.outputs.iter().map(|shown| shown.output.data.clone()).collect();
        assert_eq!(shown, [plain("c"), plain("b")]);
        collector.frame(KernelFrame::Clear { id: None }, 1, &sink);
        collector.frame(display("e", None, false), 1, &sink);
        assert_eq!((collector.outputs.len(), collector.outputs_bytes), (1, 1));
    }

    #[test]
    fn outputs_stay_within_their_bytes_however_they_come() {
        let mut collector = Collector::new(100);
        let sink = OutputSink::discard();
        for _ in 0..100 {
            collector.frame(display("small", Some("x"), false), 10, &sink);
        }
        collector.frame(display("large", Some("x"), true), MAX_OUTPUTS_BYTES / 10, &sink);
        assert!(collector.outputs_bytes <= MAX_OUTPUTS_BYTES);
        assert!(collector.dropped);
        let large = collector.outputs.iter().filter(|shown| shown.output.data == plain("large"));
        assert_eq!(large.count(), 9);
    }

    #[test]
    fn a_flood_of_frames_is_first_not_kept_and_then_abuse() {
        let mut collector = Collector::new(100);
        let sink = OutputSink::discard();
        let ended = (0..=MAX_FRAMES * ABUSE).find(|_| {
            let abuse = collector.count(1).is_err();
            collector.frame(display("x", None, false), 1, &sink);
            abuse
        });
        assert_eq!(ended, Some(MAX_FRAMES * ABUSE));
        assert!(collector.dropped);
        assert_eq!(collector.outputs.len(), MAX_FRAMES);
    }
}
