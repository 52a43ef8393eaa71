//! Messages of a stream of the Connect protocol: hostile input. Pure.
//!
//! <https://connectrpc.com/docs/protocol#streaming-rpcs>

/// The longest message that is read; envd's pieces of output are 32 KiB.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
const HEAD_BYTES: usize = 5;
const COMPRESSED: u8 = 1;
const LAST: u8 = 2;

/// One message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// One of many.
    Next(Vec<u8>),
    /// The last one, which says how the call ended.
    Last(Vec<u8>),
}

/// The stream breaks the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// Puts messages together from pieces.
#[derive(Debug, Default)]
pub(super) struct Messages {
    buffer: Vec<u8>,
    /// Where the next message begins.
    start: usize,
}

impl Messages {
    pub(super) fn push(&mut self, piece: &[u8]) {
        // once a piece, not once a message: a piece may hold hundreds
        self.buffer.drain(..std::mem::take(&mut self.start));
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole message.
    pub(super) fn next(&mut self) -> Result<Option<Message>, Broken> {
        let rest = &self.buffer[self.start..];
        let Some((head, rest)) = rest.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let [flags, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_MESSAGE_BYTES || flags & COMPRESSED != 0 {
            return Err(Broken);
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let message = message.to_vec();
        self.start += HEAD_BYTES + length;
        Ok(Some(if flags & LAST == 0 { Message::Next(message) } else { Message::Last(message) }))
    }
}

/// A request is one message.
pub(super) fn request(message: &str) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut bytes = vec![0];
    bytes.extend(length.to_be_bytes());
    bytes.extend(message.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(pieces: &[&[u8]]) -> Result<Vec<Message>, Broken> {
        let mut messages = Messages::default();
        let mut found = Vec::new();
        for piece in pieces {
            messages.push(piece);
            while let Some(message) = messages.next()? {
                found.push(message);
            }
        }
        Ok(found)
    }

    fn sample() -> Vec<u8> {
        let mut bytes = request(r#"{"event":{}}"#);
        bytes.extend(request(""));
        bytes.extend([2, 0, 0, 0, 2, b'{', b'}']);
        bytes
    }

    #[test]
    fn messages_are_read_and_written_as_the_protocol_has_them() {
        let expected = [
            Message::Next(br#"{"event":{}}"#.to_vec()),
            Message::Next(Vec::new()),
            Message::Last(b"{}".to_vec()),
        ];
        assert_eq!(all(&[&sample()]).as_deref(), Ok(expected.as_slice()));
        assert_eq!(request("{}"), [0, 0, 0, 0, 2, b'{', b'}']);
    }

    #[test]
    fn what_is_too_long_or_compressed_is_not_read() {
        assert_eq!(all(&[&[0, 255, 0, 0, 0]]), Err(Broken));
        assert_eq!(all(&[&[1, 0, 0, 0, 0]]), Err(Broken));
    }

    proptest! {
        #[test]
        fn pieces_may_be_cut_anywhere(cut in 0usize..25) {
            let sample = sample();
            let (first, second) = sample.split_at(cut.min(sample.len()));
            prop_assert_eq!(all(&[first, second]), all(&[&sample]));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = all(&[&bytes]);
        }
    }
}
