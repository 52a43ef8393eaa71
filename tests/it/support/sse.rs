//! Reads server-sent events as a client does.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use serde_json::Value;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct SseEvent {
    pub id: u64,
    pub name: String,
    pub data: Value,
}

/// A stream of events, read in as many goes as a test needs.
pub struct Events {
    bytes: BoxStream<'static, reqwest::Result<Bytes>>,
    text: Vec<u8>,
}

impl Events {
    pub fn of(response: reqwest::Response) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { bytes: response.bytes_stream().boxed(), text: Vec::new() }
    }

    /// Reads until one satisfies, or to the end.
    pub async fn until(&mut self, enough: impl Fn(&SseEvent) -> bool) -> Vec<SseEvent> {
        let mut events = Vec::new();
        loop {
            while let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.text.drain(..end + 2).collect();
                if let Some(event) = parse(std::str::from_utf8(&block).unwrap()) {
                    events.push(event);
                    if enough(events.last().unwrap()) {
                        return events;
                    }
                }
            }
            let Some(piece) = self.bytes.next().await else { return events };
            self.text.extend_from_slice(&piece.unwrap());
        }
    }
}

/// Reads events until one satisfies, or to the end.
pub async fn until(
    response: reqwest::Response,
    enough: impl Fn(&SseEvent) -> bool,
) -> Vec<SseEvent> {
    Events::of(response).until(enough).await
}

/// Reads all events.
pub async fn all(response: reqwest::Response) -> Vec<SseEvent> {
    until(response, |_| false).await
}

/// None for a comment.
fn parse(block: &str) -> Option<SseEvent> {
    let field = |name: &str| {
        let prefix = format!("{name}: ");
        let lines: Vec<&str> =
            block.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    };
    Some(SseEvent {
        id: field("id")?.parse().unwrap(),
        name: field("event")?,
        data: serde_json::from_str(&field("data")?).unwrap(),
    })
}
