//! What a cell puts out, gathered within bounds: pure.

use super::frames::{DoneStatus, KernelFrame};
use crate::domain::event::{Event, OutputSink};
use crate::domain::execution::{ErrorDetail, Execution, ExecutionStatus, Output};
use crate::sandbox::streams::{Capture, MAX_OUTPUTS_BYTES, Stream, Streams, cut_text};

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

/// Gathers one cell.
#[derive(Debug)]
pub(super) struct Collector {
    late: Capture,
    streams: Streams,
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
            streams: Streams::new(output_cap),
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
        self.streams.push(stream, bytes, sink);
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
        execution.truncated |= self.dropped;
        let late_any = !self.late.is_empty();
        let (late, late_lossy) = self.late.into_text();
        self.streams.finish(execution);
        execution.lossy |= late_lossy;
        execution.late_output = late_any.then_some(late);
        execution.outputs = self.outputs.into_iter().map(|shown| shown.output).collect();
        execution.error_detail = self.error;
    }
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
