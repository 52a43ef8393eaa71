//! What a server says on stdout, within bounds before it is parsed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use super::process::Words;
use crate::domain::weight::Scale;

/// The longest message: outputs, both streams, and the same once more as text.
pub(super) const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// What one may become when it is parsed, besides its text.
pub(super) const MAX_PARSED_BYTES: usize = 32 << 20;
const MAX_DEPTH: usize = 100;
/// Messages for one call: output comes at most twenty times a second, or in pieces of 64 KiB.
const MAX_MESSAGES: u32 = 50_000;
const MAX_WORDS_BYTES: usize = 200;

/// A server's stdout. What is not JSON is noted: installers say such things before the server speaks.
/// What is beyond its bounds ends the connection, for its answer would be waited for in vain.
pub(super) struct Lines<R> {
    source: R,
    words: Arc<Words>,
    /// Since the last call.
    messages: Arc<AtomicU32>,
    /// Bytes of the line so far.
    length: usize,
    scale: Scale,
    /// The beginning of a line that is no message.
    stray: Option<Vec<u8>>,
}

impl<R> Lines<R> {
    pub(super) fn new(source: R, words: Arc<Words>, messages: Arc<AtomicU32>) -> Self {
        Self { source, words, messages, length: 0, scale: Scale::default(), stray: None }
    }

    /// An error says which bound was passed.
    fn follow(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.length == 0 && !matches!(piece[0], b'{' | b'[' | b'\n') {
                self.stray = Some(Vec::new());
            }
            if let Some(stray) = &mut self.stray {
                let room = MAX_WORDS_BYTES.saturating_sub(stray.len());
                stray.extend_from_slice(&piece[..piece.len().min(room)]);
            } else {
                self.scale.add(piece);
            }
            self.length += piece.len();
            if self.length > MAX_MESSAGE_BYTES {
                return Err("a message is longer than 64 MiB");
            }
            let weight = self.scale.weight;
            if weight.parsed_bytes > MAX_PARSED_BYTES || weight.depth > MAX_DEPTH {
                return Err("a message holds too many values, or too deep ones");
            }
            if piece.ends_with(b"\n") {
                self.end_line()?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), &'static str> {
        (self.length, self.scale) = (0, Scale::default());
        match self.stray.take() {
            Some(stray) => self.words.add(String::from_utf8_lossy(&stray).trim_end()),
            None if self.messages.fetch_add(1, Ordering::SeqCst) >= MAX_MESSAGES => {
                return Err("more messages have come than one call can have");
            }
            None => {}
        }
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Lines<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let lines = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut lines.source).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = polled
            && let Err(why) = lines.follow(&buffer.filled()[before..])
        {
            lines.words.add(why);
            return Poll::Ready(Err(std::io::Error::other(why)));
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(pieces: &[&[u8]]) -> (Result<(), &'static str>, Arc<Words>) {
        let words: Arc<Words> = Arc::default();
        let mut lines = Lines::new((), Arc::clone(&words), Arc::default());
        let followed = pieces.iter().try_for_each(|piece| lines.follow(piece));
        (followed, words)
    }

    #[test]
    fn what_is_no_message_is_noted_and_passed_over() {
        let (followed, words) = followed(&[b"Installed 5 pack", b"ages\n{\"a\":1}\n\n"]);
        assert!(followed.is_ok());
        assert_eq!(words.last().to_string(), ": Installed 5 packages");
    }

    #[test]
    fn messages_beyond_their_bounds_end_the_connection() {
        let many = format!("[{}]\n", vec!["{}"; 60_000].join(","));
        assert!(followed(&[many.as_bytes()]).0.is_err());
        let deep = "[".repeat(101);
        assert!(followed(&[deep.as_bytes()]).0.is_err());
        let text = format!("\"{}\"\n", "{,".repeat(2_000_000));
        assert!(followed(&[b"[", text.as_bytes()]).0.is_ok(), "texts hold no values");
        let flood = "{}\n".repeat(MAX_MESSAGES as usize + 1);
        assert!(followed(&[flood.as_bytes()]).0.is_err());
        let long = vec![b' '; MAX_MESSAGE_BYTES + 1];
        assert!(followed(&[b"{", &long]).0.is_err());
    }
}
