//! Messages and frames of the provider, as types: pure.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::root::RootPlan;
use super::seccomp::Filters;
use crate::domain::provider::IsolationLevel;

/// The longest frame accepted from a kernel.
const MAX_FRAME_BYTES: usize = 32 << 20;
/// What the values of a frame may take once they are parsed; a large figure of plotly has some
/// hundred thousand numbers.
const MAX_PARSED_BYTES: usize = 64 << 20;
/// What a parsed value takes besides its text.
const PART_BYTES: usize = 32;
/// What a parsed object takes at least: its tree has room for eleven members from the first on.
const OBJECT_BYTES: usize = 704;
/// Less than what a store can read again once it is wrapped.
const MAX_DEPTH: usize = 64;
/// Larger buffers are not kept between frames.
const KEPT_BUFFER_BYTES: usize = 256 * 1024;

/// How a warden is set up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WardenPlan {
    pub(super) level: IsolationLevel,
    pub(super) root: RootPlan,
    /// The folder that holds the interpreter, as the zygote sees it.
    pub(super) bin: PathBuf,
    /// The folder that holds our own code for the guest, as the zygote sees it.
    pub(super) code: PathBuf,
    /// Where the zygote may write, as it sees it.
    pub(super) home: PathBuf,
    /// What sessions may read where they have no root of their own.
    pub(super) readable: Vec<PathBuf>,
    /// Modules that the zygote imports before the first fork.
    pub(super) packages: Vec<String>,
    pub(super) environ: BTreeMap<String, String>,
}

/// What a room and its kernel are made with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SpawnRequest {
    pub(super) id: String,
    pub(super) disk_bytes: u64,
    pub(super) inodes: u64,
    /// What each process may map beyond the warm Python.
    pub(super) address_bytes: u64,
    /// Names of resource limits without `RLIMIT_`, soft and hard alike.
    pub(super) limits: BTreeMap<String, u64>,
    /// The session's folder on the host, where it has no root of its own.
    pub(super) folder: Option<PathBuf>,
}

/// What a kernel is told before its first cell. It goes to the kernel alone: whatever passes
/// through the zygote stays in its memory, which every later session is a copy of.
#[derive(Debug, Serialize)]
pub(super) struct EnvironFrame<'a> {
    pub(super) t: &'static str,
    pub(super) environ: &'a BTreeMap<String, String>,
}

/// How many descriptors of a spawn are the session's: its socket, stdout, stderr, late output.
pub(super) const PIPES: usize = 4;

/// Service to warden. A spawn carries session socket, stdout, stderr and late output, then what is
/// written to in order to join the session's cgroups.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum ToWarden {
    Start(WardenPlan),
    Spawn(SpawnRequest),
}

/// Warden to service. `Spawned` carries the pidfds of room and kernel, the files folder readable
/// and as a place, and the room's socket.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum FromWarden {
    Ready {
        python: String,
        packages: BTreeMap<String, String>,
        landlock: u32,
        own_proc: bool,
    },
    Spawned {
        id: String,
    },
    Failed {
        id: String,
        step: String,
        errno: i32,
    },
    /// Negative: the number of a signal.
    Exited {
        id: String,
        code: i32,
    },
    Fatal {
        step: String,
        errno: i32,
    },
}

/// Warden to zygote. A fork carries the room's pidfd before what the service gave.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum ToZygote {
    Start {
        level: IsolationLevel,
        packages: Vec<String>,
        filters: Vec<String>,
        session_filters: Vec<String>,
        readable: Vec<PathBuf>,
        bin: PathBuf,
    },
    Fork(SpawnRequest),
}

/// Zygote to warden.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum FromZygote {
    Ready {
        python: String,
        packages: BTreeMap<String, String>,
        landlock: u32,
        threads: u32,
    },
    Forked {
        id: String,
        pid: i32,
    },
    /// No kernel could be forked.
    Failed {
        id: String,
        errno: i32,
    },
    Exited {
        id: Option<String>,
        code: i32,
    },
}

/// Room init to warden. `Ready` carries the files folder, readable and as a place.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum FromRoom {
    Ready,
    Failed { step: String, errno: i32 },
}

impl ToZygote {
    pub(super) fn start(plan: &WardenPlan, filters: &Filters) -> Self {
        let text = |programs: &[Vec<u8>]| programs.iter().map(|p| STANDARD.encode(p)).collect();
        Self::Start {
            level: plan.level,
            packages: plan.packages.clone(),
            filters: text(&filters.zygote),
            session_filters: text(&filters.session),
            readable: plan.readable.clone(),
            bin: plan.bin.clone(),
        }
    }
}

/// A message as it travels.
pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages have string keys and no failing parts")
}

/// The message, or None when it is none of these.
pub(super) fn decode<T: DeserializeOwned>(message: &[u8]) -> Option<T> {
    serde_json::from_slice(message).ok()
}

/// A cell on its way to the kernel.
#[derive(Debug, Serialize)]
pub(super) struct ExecFrame<'a> {
    pub(super) t: &'static str,
    pub(super) id: &'a str,
    pub(super) code: &'a str,
    pub(super) lang: &'static str,
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) stdin: Option<&'a str>,
}

/// A frame as it travels to a kernel, its length first.
pub(super) fn framed<T: Serialize>(message: &T) -> Vec<u8> {
    let body = encode(message);
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(body);
    frame
}

/// A frame from a kernel: hostile input. Unknown kinds and keys are passed over.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub(super) enum KernelFrame {
    Hello {},
    Display {
        id: Option<String>,
        #[serde(default)]
        data: Map<String, Value>,
        #[serde(default)]
        metadata: Map<String, Value>,
        display_id: Option<String>,
        #[serde(default)]
        update: bool,
        #[serde(default)]
        cut: Vec<String>,
    },
    Result {
        id: Option<String>,
        #[serde(default)]
        data: Map<String, Value>,
        #[serde(default)]
        metadata: Map<String, Value>,
        #[serde(default)]
        cut: Vec<String>,
    },
    Error {
        id: Option<String>,
        #[serde(default)]
        ename: String,
        #[serde(default)]
        evalue: String,
        #[serde(default)]
        traceback: String,
        line: Option<u32>,
    },
    Clear {
        id: Option<String>,
    },
    Dropped {
        id: Option<String>,
    },
    Done {
        id: Option<String>,
        status: DoneStatus,
        n: Option<u32>,
        exit_code: Option<i32>,
    },
    #[serde(other)]
    Unknown,
}

/// How the kernel says that a cell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DoneStatus {
    Ok,
    Error,
    Interrupted,
}

impl KernelFrame {
    /// The cell that the frame belongs to.
    pub(super) fn cell(&self) -> Option<&str> {
        match self {
            Self::Display { id, .. }
            | Self::Result { id, .. }
            | Self::Error { id, .. }
            | Self::Clear { id }
            | Self::Dropped { id }
            | Self::Done { id, .. } => id.as_deref(),
            Self::Hello {} | Self::Unknown => None,
        }
    }
}

/// How a kernel breaks its channel; the session is ended for it.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a frame of {0} bytes is over the limit")]
    TooLong(usize),
    #[error("a frame would take {0} bytes once it is parsed, which is over the limit")]
    TooHeavy(usize),
    #[error("a frame is nested {0} deep, which is over the limit")]
    TooDeep(usize),
    /// The parser's own words may hold the frame's text, which is nobody's business.
    #[error("a frame is not what it must be ({0:?} error at byte {1})")]
    Malformed(serde_json::error::Category, usize),
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
}

impl FrameReader {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Gives memory back that a long frame has taken, once it is read.
    pub(super) fn shrink(&mut self) {
        if self.start == self.buffer.len() && self.buffer.capacity() > KEPT_BUFFER_BYTES {
            *self = Self::default();
        }
    }

    /// The next whole frame with what it takes in memory, or None until more bytes have come.
    pub(super) fn next(&mut self) -> Result<Option<(KernelFrame, usize)>, FrameError> {
        let waiting = &self.buffer[self.start..];
        let Some((length, rest)) = waiting.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong(length));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let Weight { parsed_bytes, depth } = weigh(body);
        if parsed_bytes > MAX_PARSED_BYTES {
            return Err(FrameError::TooHeavy(parsed_bytes));
        }
        if depth > MAX_DEPTH {
            return Err(FrameError::TooDeep(depth));
        }
        let frame = serde_json::from_slice(body)
            .map_err(|error| FrameError::Malformed(error.classify(), error.column()))?;
        self.start += 4 + length;
        if self.start > MAX_FRAME_BYTES {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        Ok(Some((frame, length + parsed_bytes)))
    }
}

/// What a JSON text becomes when it is parsed.
#[derive(Debug, PartialEq, Eq)]
struct Weight {
    /// Besides its text.
    parsed_bytes: usize,
    depth: usize,
}

/// Before anything is parsed: a short text of many small values takes much memory.
fn weigh(body: &[u8]) -> Weight {
    let mut weight = Weight { parsed_bytes: PART_BYTES, depth: 0 };
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in body {
        match (in_text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b',') => weight.parsed_bytes += PART_BYTES,
            (false, b'[' | b'{') => {
                depth += 1;
                weight.depth = weight.depth.max(depth);
                weight.parsed_bytes += if *byte == b'{' { OBJECT_BYTES } else { PART_BYTES };
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    weight
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn frames_arrive_whole_however_they_are_cut() {
        let bytes = [
            framed(&json!({"t": "done", "id": "a", "status": "ok", "exit_code": 0, "new": 1})),
            framed(&json!({"t": "later invention", "x": [1, 2]})),
        ]
        .concat();
        for cut in 1..bytes.len() {
            let mut reader = FrameReader::default();
            let mut seen = Vec::new();
            for piece in [&bytes[..cut], &bytes[cut..]] {
                reader.push(piece);
                while let Some((frame, _)) = reader.next().expect("well-formed") {
                    seen.push(frame);
                }
            }
            let done = KernelFrame::Done {
                id: Some("a".into()),
                status: DoneStatus::Ok,
                n: None,
                exit_code: Some(0),
            };
            assert_eq!(seen, [done, KernelFrame::Unknown]);
        }
    }

    #[test]
    fn a_huge_length_is_refused_before_anything_is_kept() {
        let mut reader = FrameReader::default();
        reader.push(&u32::MAX.to_le_bytes());
        assert!(matches!(reader.next(), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn json_nested_without_end_is_refused() {
        let mut reader = FrameReader::default();
        let body = "[".repeat(200_000);
        reader.push(&(body.len() as u32).to_le_bytes());
        reader.push(body.as_bytes());
        assert!(matches!(reader.next(), Err(FrameError::TooHeavy(..) | FrameError::TooDeep(_))));
        let mut reader = FrameReader::default();
        let body = "[".repeat(MAX_DEPTH + 1);
        reader.push(&(body.len() as u32).to_le_bytes());
        reader.push(body.as_bytes());
        assert!(matches!(reader.next(), Err(FrameError::TooDeep(_))));
    }

    #[test]
    fn a_frame_of_too_many_small_values_is_refused() {
        for (small, bytes) in [("0,", PART_BYTES), ("{\"\":0},", OBJECT_BYTES)] {
            let many = small.repeat(MAX_PARSED_BYTES / bytes);
            let body = format!("{{\"t\":\"x\",\"y\":[{many}0]}}");
            let mut reader = FrameReader::default();
            reader.push(&(body.len() as u32).to_le_bytes());
            reader.push(body.as_bytes());
            assert!(matches!(reader.next(), Err(FrameError::TooHeavy(_))), "{small}");
        }
        let parsed_bytes = OBJECT_BYTES + 4 * PART_BYTES;
        assert_eq!(weigh(br#"{"a": "x,[\",{", "b": [1, 2]}"#), Weight { parsed_bytes, depth: 2 });
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16)) {
            let mut reader = FrameReader::default();
            for piece in pieces {
                reader.push(&piece);
                while let Ok(Some(_)) = reader.next() {}
            }
        }
    }
}
