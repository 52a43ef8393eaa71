//! What came of a cell, as a kernel of ours in a sandbox elsewhere tells it: hostile input. Pure.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::listing::{Listing, Stamp};
use super::outcome::{error_detail, tell_interrupt, tell_timeout};
use super::streams::{Capture, Ends, MAX_OUTPUTS_BYTES, Stream, Streams, cut_text};
use crate::domain::event::{Event, OutputSink};
use crate::domain::execution::{Cell, Execution, ExecutionStatus, Output, milliseconds};

const MAX_OUTPUTS: usize = 10_000;
const MAX_LATE_BYTES: usize = 64 << 10;

/// What our kernel says of a cell.
#[derive(Debug, Deserialize)]
pub(super) struct Outcome {
    exit_code: i32,
    error: Option<Raised>,
    count: u32,
    ms: f64,
    #[serde(flatten)]
    pub(super) printed: Printed,
    late: String,
    outputs: Vec<Shown>,
    cut: bool,
    reason: Option<Stopped>,
    #[serde(flatten)]
    pub(super) found: Found,
}

/// Both streams.
#[derive(Debug, Deserialize)]
pub(super) struct Printed {
    #[serde(deserialize_with = "ends")]
    stdout: Ends,
    #[serde(deserialize_with = "ends")]
    stderr: Ends,
}

/// The files that there are afterwards; absent where nobody could look.
#[derive(Debug, Deserialize)]
pub(super) struct Found {
    files: Option<Vec<(String, u64, i64)>>,
    #[serde(default)]
    files_cut: bool,
}

/// Why it was ended from inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stopped {
    Timeout,
    Interrupted,
}

#[derive(Debug, Deserialize)]
struct Raised {
    name: String,
    message: String,
    traceback: String,
    line: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Shown {
    data: Map<String, Value>,
    metadata: Map<String, Value>,
    main: bool,
}

#[derive(Deserialize)]
struct Encoded {
    head: String,
    tail: String,
    bytes: u64,
}

fn ends<'de, D: Deserializer<'de>>(input: D) -> Result<Ends, D::Error> {
    let Encoded { head, tail, bytes } = Encoded::deserialize(input)?;
    let decoded = |text: &str| STANDARD.decode(text).map_err(serde::de::Error::custom);
    Ok(Ends { head: decoded(&head)?, tail: decoded(&tail)?, bytes })
}

impl Found {
    /// The files by their paths; None where nobody could look.
    pub(super) fn listing(self) -> Option<Listing> {
        let named =
            |(path, size, nanoseconds): (String, u64, i64)| (path, stamp(size, nanoseconds));
        Some(Listing::of(self.files?.into_iter().map(named), self.files_cut))
    }
}

/// One state of a file, from what the sandbox says of it.
pub(super) fn stamp(size: u64, nanoseconds: i64) -> Stamp {
    let modified = OffsetDateTime::from_unix_timestamp_nanos(i128::from(nanoseconds));
    Stamp { size, modified: modified.unwrap_or(OffsetDateTime::UNIX_EPOCH) }
}

/// What listeners have been told of a cell that runs.
pub(super) struct Heard {
    /// Bytes of stdout and stderr.
    pub(super) bytes: [u64; 2],
    pieces: [Capture; 2],
}

impl Heard {
    pub(super) fn nothing() -> Self {
        Self { bytes: [0, 0], pieces: [Capture::new(2), Capture::new(2)] }
    }

    /// Tells what has come meanwhile.
    pub(super) fn tell(&mut self, stream: Stream, bytes: &[u8], sink: &OutputSink) {
        let number = match stream {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        };
        self.bytes[number] += bytes.len() as u64;
        if let Some(text) = self.pieces[number].piece(bytes) {
            sink.send(match stream {
                Stream::Stdout => Event::Stdout { text },
                Stream::Stderr => Event::Stderr { text },
            });
        }
    }
}

impl Printed {
    /// Puts what was printed into the execution, and tells listeners what they have not heard.
    pub(super) fn tell(
        self,
        execution: &mut Execution,
        cap: usize,
        heard: &mut Heard,
        sink: &OutputSink,
    ) {
        let mut streams = Streams::new(cap);
        for (number, stream, ends) in
            [(0, Stream::Stdout, &self.stdout), (1, Stream::Stderr, &self.stderr)]
        {
            streams.set(stream, ends);
            if sink.is_read() {
                for rest in ends.after(heard.bytes[number]) {
                    heard.tell(stream, rest, sink);
                }
            }
        }
        streams.finish(execution);
    }

    #[cfg(feature = "bedrock")]
    pub(super) fn stderr(&self) -> String {
        let mut streams = Streams::new(64 << 10);
        streams.set(Stream::Stderr, &self.stderr);
        streams.into_stderr()
    }
}

impl Outcome {
    /// Tells all of it but the files. Gives what is known of those.
    pub(super) fn tell(
        self,
        execution: &mut Execution,
        cell: &Cell,
        shown: Vec<Output>,
        (cap, heard, sink): (usize, &mut Heard, &OutputSink),
    ) -> Found {
        execution.duration_ms = Some(measured(self.ms));
        execution.execution_count = Some(self.count);
        execution.truncated |= self.cut;
        let late = cut_text(self.late, MAX_LATE_BYTES);
        execution.late_output = (!late.is_empty()).then_some(late);
        self.printed.tell(execution, cap, heard, sink);
        let own = self.outputs.into_iter();
        let own = own.map(|Shown { data, metadata, main }| Output { data, metadata, main });
        show(execution, own.chain(shown), sink);
        match (self.reason, self.error) {
            (Some(Stopped::Timeout), _) => tell_timeout(execution, cell.timeout),
            (Some(Stopped::Interrupted), _) => tell_interrupt(execution),
            (None, None) => {
                execution.status = ExecutionStatus::Success;
                execution.exit_code = Some(0);
            }
            (None, Some(Raised { name, message, traceback, line })) => {
                execution.status = ExecutionStatus::Error;
                execution.exit_code = Some(self.exit_code & 0xFF);
                let detail = error_detail(name, message, traceback, line);
                execution.error = Some(detail.traceback.clone());
                execution.error_detail = Some(detail);
            }
        }
        self.found
    }
}

/// A time as it is told, whatever the sandbox says.
pub(super) fn measured(ms: f64) -> f64 {
    milliseconds(Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default())
}

/// Puts rich results into the execution, as many as fit.
fn show(execution: &mut Execution, shown: impl Iterator<Item = Output>, sink: &OutputSink) {
    let mut bytes = 0;
    for output in shown {
        bytes += serde_json::to_vec(&output).map_or(usize::MAX, |text| text.len());
        if execution.outputs.len() >= MAX_OUTPUTS || bytes > MAX_OUTPUTS_BYTES {
            execution.truncated = true;
            return;
        }
        if sink.is_read() {
            sink.send(Event::Output(output.clone()));
        }
        execution.outputs.push(output);
    }
}
