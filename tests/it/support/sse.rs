//! Reads server-sent events as a client does.

use futures::StreamExt;
use serde_json::Value;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct SseEvent {
    pub id: u64,
    pub name: String,
    pub data: Value,
}

/// Reads events until one satisfies, or to the end.
pub async fn until(
    response: reqwest::Response,
    enough: impl Fn(&SseEvent) -> bool,
) -> Vec<SseEvent> {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut bytes = response.bytes_stream();
    let mut text = Vec::new();
    let mut events = Vec::new();
    while let Some(piece) = bytes.next().await {
        text.extend_from_slice(&piece.unwrap());
        while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
            let block: Vec<u8> = text.drain(..end + 2).collect();
            if let Some(event) = parse(std::str::from_utf8(&block).unwrap()) {
                events.push(event);
                if enough(events.last().unwrap()) {
                    return events;
                }
            }
        }
    }
    events
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
