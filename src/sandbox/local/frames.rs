//! Frames from a kernel: hostile input, weighed before it is parsed.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::domain::weight::{Weight, weigh};

/// The longest frame accepted from a kernel.
const MAX_FRAME_BYTES: usize = 32 << 20;
/// What the values of a frame may take once they are parsed; a large figure of plotly has some
/// hundred thousand numbers.
const MAX_PARSED_BYTES: usize = 64 << 20;
/// Less than what a store can read again once it is wrapped.
const MAX_DEPTH: usize = 64;
/// Larger buffers are not kept between frames.
const KEPT_BUFFER_BYTES: usize = 256 * 1024;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::domain::weight::{OBJECT_BYTES, PART_BYTES};
    use crate::sandbox::local::wire::framed;

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
    }

    /// Every frame that can be read from these bytes, and whether they break the rules.
    fn read(pieces: &[&[u8]]) -> (Vec<KernelFrame>, bool) {
        let (mut reader, mut seen) = (FrameReader::default(), Vec::new());
        for piece in pieces {
            reader.push(piece);
            loop {
                match reader.next() {
                    Ok(Some((frame, bytes))) => {
                        assert!(bytes > 0, "a frame always counts");
                        seen.push(frame);
                    }
                    Ok(None) => break,
                    Err(_) => return (seen, true),
                }
            }
        }
        (seen, false)
    }

    fn json_values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map("[a-z/]{0,8}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// A frame with some of the keys that frames have, each with any value.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let kinds = ["hello", "display", "result", "error", "clear", "dropped", "done", "other"];
        let keys = ["id", "data", "metadata", "display_id", "update", "cut", "line", "status", "n"];
        let kind = prop::sample::select(kinds.to_vec());
        let fields =
            prop::collection::vec((prop::sample::select(keys.to_vec()), json_values()), 0..5);
        (kind, fields).prop_map(|(kind, fields)| {
            let mut frame = Map::from_iter([("t".to_owned(), Value::from(kind))]);
            frame.extend(fields.into_iter().map(|(key, value)| (key.to_owned(), value)));
            framed(&Value::Object(frame))
        })
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16)) {
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            read(&pieces);
        }

        #[test]
        fn where_a_stream_is_cut_changes_nothing(
            frames in prop::collection::vec(frames(), 1..6),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let bytes = frames.concat();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut last = 0;
            for cut in cuts {
                pieces.push(&bytes[last..cut]);
                last = cut;
            }
            pieces.push(&bytes[last..]);
            prop_assert_eq!(read(&pieces), read(&[&bytes]));
        }

        #[test]
        fn a_frame_that_was_tampered_with_is_read_or_refused_and_never_half_read(
            frame in frames(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = frame;
            for (place, value) in changes {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            let (seen, broken) = read(&[&bytes]);
            prop_assert!(seen.len() <= bytes.len() / 4, "each takes its length at least");
            prop_assert!(!broken || seen.len() <= 1);
        }

        #[test]
        fn what_a_frame_weighs_is_not_less_than_its_values(value in json_values()) {
            let values = count(&value);
            let weight = weigh(value.to_string().as_bytes());
            prop_assert!(weight.parsed_bytes >= values * PART_BYTES, "{} values", values);
        }
    }

    fn count(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
            Value::Object(members) => 1 + members.values().map(count).sum::<usize>(),
            _ => 1,
        }
    }
}
