//! A model behind HTTP: asked, again where that is safe.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use sse_stream::{Sse, SseByteStream};
use tokio::time::Instant;

use super::conversation::Conversation;
use super::{LanguageModel, LlmError, Turn};
use crate::config::ModelEntry;
use crate::domain::coded::chain;
use crate::domain::event::{Event, OutputSink};
use crate::domain::reason::Reason;
use crate::domain::weight::{Weight, weigh};

const ATTEMPTS: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Pauses double from here.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// How long is waited for more once a message has ended.
const AFTER_THE_END: Duration = Duration::from_secs(2);
/// Text that comes within this time is told together.
const TOGETHER: Duration = Duration::from_millis(30);
const TOGETHER_BYTES: usize = 512;
/// The longest answer that is read; a stream has some hundred bytes for each piece of text.
const MAX_ANSWER_BYTES: usize = 8 << 20;
const MAX_STREAM_BYTES: usize = 32 << 20;
/// What a message may become in memory: it is copied into each request that follows.
const MAX_PARSED_BYTES: usize = 8 << 20;
const MAX_MESSAGE_BYTES: usize = 4 << 20;
const MAX_DEPTH: usize = 64;
/// What an event may become without counting.
const SMALL_EVENT_BYTES: usize = 16 << 10;
/// The longest that a stream may go on, however alive it is; the run's own limit is shorter.
const LONGEST_STREAM: Duration = Duration::from_secs(3600);

/// What differs from protocol to protocol: pure translation.
pub(super) trait Wire: Send + Sync {
    /// The word that settings use for the protocol.
    fn protocol(&self) -> &'static str;

    /// The body of a request.
    fn request(&self, conversation: &Conversation, stream: bool) -> Value;

    /// Puts a piece of a stream into what will be the body of an answer; null at first.
    fn put(&self, body: &mut Value, event: &str) -> Result<Piece, LlmError>;

    /// The turn in the body of a successful answer.
    fn turn(&self, body: &Value) -> Result<Turn, LlmError>;
}

/// What a piece of a stream brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Text for the caller.
    pub(super) text: String,
    /// True when nothing of the message can be missing any more.
    pub(super) ends: bool,
    /// True when nothing at all comes any more.
    pub(super) closes: bool,
}

/// How a protocol is reached.
pub(super) struct Access {
    /// The vendor's own place.
    pub(super) vendor_url: &'static str,
    /// What the base URL must end with, and gets where it does not.
    pub(super) version: Option<&'static str>,
    /// The route below it.
    pub(super) route: &'static str,
    /// The header of the key; a bearer token where there is none.
    pub(super) key_header: Option<&'static str>,
    /// Headers of every request.
    pub(super) headers: &'static [(&'static str, &'static str)],
}

/// A model that speaks a wire over HTTP.
pub(super) struct Remote<W> {
    wire: W,
    client: reqwest::Client,
    url: Url,
    headers: HeaderMap,
    /// What must stand in no error.
    secrets: Vec<SecretString>,
    entry: ModelEntry,
}

impl<W: Wire> Remote<W> {
    pub(super) fn new(wire: W, access: &Access, entry: &ModelEntry) -> Result<Self, LlmError> {
        let base = entry.base_url.as_deref().unwrap_or(access.vendor_url);
        Ok(Self {
            wire,
            client: crate::net::client(LONGEST_STREAM)?,
            url: url(base, access).ok_or_else(|| LlmError::BaseUrl(entry.name.clone()))?,
            headers: headers(access, entry)?,
            secrets: entry.api_key.iter().chain(entry.headers.values()).cloned().collect(),
            entry: entry.clone(),
        })
    }

    async fn ask(&self, asked: &Asked, told: &mut Told<'_>) -> Result<Turn, LlmError> {
        let deadline = Instant::now() + self.entry.timeout;
        let request = self.client.post(self.url.clone()).headers(self.headers.clone());
        let request = request.header(CONTENT_TYPE, "application/json").body(asked.body.clone());
        let response = until(deadline, request.send()).await?.map_err(failed)?;
        let status = response.status();
        let after = retry_after(&response);
        if !status.is_success() {
            let body = until(deadline, whole(response)).await??;
            return Err(refusal(status.as_u16(), after, &body));
        }
        if asked.stream && is_stream(&response) {
            return self.follow(response, told).await;
        }
        let body = until(deadline, whole(response)).await??;
        fits(&body)?;
        let body = serde_json::from_slice(&body);
        let body = body.map_err(|_| LlmError::BadResponse("the body is not JSON"))?;
        check(&body)?;
        self.wire.turn(&body)
    }

    /// Reads a stream to its end, which must be a told one.
    async fn follow(&self, response: Response, told: &mut Told<'_>) -> Result<Turn, LlmError> {
        let mut events = std::pin::pin!(SseByteStream::new(bounded(response)));
        let mut body = Value::Null;
        let mut ended = false;
        let mut parsed_bytes = 0;
        loop {
            // after the end of the message, its count of tokens may come, or nothing
            let most = if ended { AFTER_THE_END } else { self.entry.timeout };
            let event = match until(Instant::now() + most, events.next()).await {
                Ok(Some(Ok(event))) => event,
                Ok(None | Some(Err(_))) | Err(_) if ended => break,
                Ok(None) => return Err(LlmError::BrokenOff),
                Ok(Some(Err(error))) => return Err(broken(error)),
                Err(error) => return Err(error),
            };
            let Sse { data: Some(data), .. } = event else { continue };
            let weight = weigh(data.as_bytes());
            parsed_bytes += weight.parsed_bytes.saturating_sub(SMALL_EVENT_BYTES);
            if parsed_bytes > MAX_PARSED_BYTES || weight.depth > MAX_DEPTH {
                return Err(TOO_MUCH);
            }
            let piece = self.wire.put(&mut body, &data)?;
            told.say(&piece.text);
            ended |= piece.ends;
            if piece.closes {
                break;
            }
        }
        fits(body.to_string().as_bytes())?;
        self.wire.turn(&body)
    }
}

const TOO_MUCH: LlmError =
    LlmError::BadResponse("its message is too long, too deep or of too many parts");

/// Whether a message can be kept in memory, and sent back again and again.
fn fits(body: &[u8]) -> Result<(), LlmError> {
    let Weight { parsed_bytes, depth } = weigh(body);
    let fits = body.len() <= MAX_MESSAGE_BYTES && parsed_bytes <= MAX_PARSED_BYTES;
    if fits && depth <= MAX_DEPTH { Ok(()) } else { Err(TOO_MUCH) }
}

/// A request as it is sent, again and again.
struct Asked {
    body: Bytes,
    stream: bool,
}

async fn until<T>(deadline: Instant, work: impl Future<Output = T>) -> Result<T, LlmError> {
    tokio::time::timeout_at(deadline, work).await.map_err(|_| LlmError::Timeout)
}

#[async_trait]
impl<W: Wire> LanguageModel for Remote<W> {
    fn name(&self) -> &str {
        &self.entry.name
    }

    fn protocol(&self) -> &'static str {
        self.wire.protocol()
    }

    fn place(&self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        // a URL with a host takes both
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.into()
    }

    fn vision(&self) -> bool {
        self.entry.vision
    }

    async fn turn(&self, conversation: &Conversation, sink: &OutputSink) -> Result<Turn, LlmError> {
        let stream = self.entry.stream && sink.is_read();
        let mut body = self.wire.request(conversation, stream);
        for (name, value) in &self.entry.body {
            body[name] = value.clone();
        }
        let asked = Asked { stream: body["stream"] == true, body: body.to_string().into() };
        let mut told = Told::to(sink);
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS {
            let result = self.ask(&asked, &mut told).await;
            let result = result.map_err(|error| error.without(&self.secrets));
            told.say_all();
            let error = match result {
                // nobody asks again in another way what was half told
                Err(LlmError::ContextTooLong) if told.any => return Err(LlmError::BrokenOff),
                Err(error) if error.is_passing() && !told.any && attempt < ATTEMPTS => error,
                result => return result,
            };
            tracing::warn!(
                model = self.entry.name,
                place = self.place(),
                error = chain(&error),
                "a turn is tried again"
            );
            // not all at once: those who failed together would come back together
            let own = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            tokio::time::sleep(error.retry_after().unwrap_or(own).min(LONGEST_PAUSE)).await;
            pause *= 2;
        }
        Err(LlmError::BrokenOff)
    }
}

/// Who is told the text, and whether anything was.
struct Told<'a> {
    sink: &'a OutputSink,
    any: bool,
    pending: String,
    last: Option<Instant>,
}

impl<'a> Told<'a> {
    fn to(sink: &'a OutputSink) -> Self {
        Self { sink, any: false, pending: String::new(), last: None }
    }

    /// Tells a text, at once or with the next ones: an event for each token would be too many.
    fn say(&mut self, text: &str) {
        self.pending.push_str(text);
        let due = self.last.is_none_or(|last| last.elapsed() >= TOGETHER);
        if due || self.pending.len() >= TOGETHER_BYTES {
            self.say_all();
        }
    }

    fn say_all(&mut self) {
        if !self.pending.is_empty() {
            self.any = true;
            self.last = Some(Instant::now());
            self.sink.send(Event::ModelDelta { text: std::mem::take(&mut self.pending) });
        }
    }
}

/// The route below the base URL; a query of the base URL stays.
fn url(base: &str, access: &Access) -> Option<Url> {
    let mut url = Url::parse(base).ok()?;
    let mut path = url.path().trim_end_matches('/').to_owned();
    if let Some(version) = access.version
        && !path.ends_with(version)
    {
        path.push_str(version);
    }
    url.set_path(&format!("{path}{}", access.route));
    (url.has_host() && matches!(url.scheme(), "http" | "https")).then_some(url)
}

fn headers(access: &Access, entry: &ModelEntry) -> Result<HeaderMap, LlmError> {
    let mut headers = HeaderMap::new();
    for (name, value) in access.headers {
        headers.insert(*name, HeaderValue::from_static(value));
    }
    if let Some(key) = &entry.api_key {
        let name = entry.api_key_header.as_deref().or(access.key_header);
        let bearer = || SecretString::from(format!("Bearer {}", key.expose_secret()));
        let (name, value) =
            name.map_or_else(|| ("authorization", bearer()), |name| (name, key.clone()));
        headers.insert(header_name(name)?, secret(name, value.expose_secret())?);
    }
    // what is set by hand goes before what we know
    for (name, value) in &entry.headers {
        headers.insert(header_name(name)?, secret(name, value.expose_secret())?);
    }
    Ok(headers)
}

fn header_name(name: &str) -> Result<HeaderName, LlmError> {
    name.parse().map_err(|_| LlmError::Header(name.to_owned()))
}

fn secret(name: &str, value: &str) -> Result<HeaderValue, LlmError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| LlmError::Header(name.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn failed(error: reqwest::Error) -> LlmError {
    // the URL may hold what is nobody's business
    if error.is_timeout() { LlmError::Timeout } else { LlmError::Transport(error.without_url()) }
}

fn broken(error: sse_stream::Error) -> LlmError {
    match error {
        sse_stream::Error::Body(source) => match source.downcast_ref() {
            Some(Unread::TooLong) => LlmError::BadResponse("the answer has no end"),
            Some(Unread::Broken(_)) | None => LlmError::BrokenOff,
        },
        _ => LlmError::BadResponse("the stream is not one of events"),
    }
}

/// Why a stream is not read to its end.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("more came than is read")]
    TooLong,
    #[error("the connection broke")]
    Broken(#[source] reqwest::Error),
}

/// RFC 9110, section 10.2.3: a number of seconds, or a date.
fn retry_after(response: &Response) -> Option<Duration> {
    let said = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = said.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(said).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Unless it is certainly something else: not all services say what they send.
fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    !kind.is_some_and(|kind| kind.starts_with("application/json") || kind.starts_with("text/html"))
}

async fn whole(response: Response) -> Result<Vec<u8>, LlmError> {
    let mut body = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece.map_err(failed)?);
        if body.len() > MAX_ANSWER_BYTES {
            return Err(LlmError::BadResponse("the answer has no end"));
        }
    }
    Ok(body)
}

fn bounded(response: Response) -> impl Stream<Item = Result<Bytes, Unread>> {
    let mut left = MAX_STREAM_BYTES;
    response.bytes_stream().map(move |piece| {
        let piece = piece.map_err(Unread::Broken)?;
        left = left.checked_sub(piece.len()).ok_or(Unread::TooLong)?;
        Ok(piece)
    })
}

/// Some services say that they failed with status 200, or in the middle of a stream.
pub(super) fn check(body: &Value) -> Result<(), LlmError> {
    match body.get("error") {
        None | Some(Value::Null) => Ok(()),
        Some(error) => {
            Err(match error["code"].as_u64().and_then(|code| u16::try_from(code).ok()) {
                Some(status @ 400..) => refused(status, None, body),
                _ => refused(status_of(&error["type"]), None, body),
            })
        }
    }
}

/// The status that goes with an error's type, by <https://docs.claude.com/en/api/errors>.
fn status_of(kind: &Value) -> u16 {
    match kind.as_str().unwrap_or_default() {
        "invalid_request_error" => 400,
        "authentication_error" => 401,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        "rate_limit_error" => 429,
        _ => 500,
    }
}

fn refusal(status: u16, after: Option<Duration>, body: &[u8]) -> LlmError {
    refused(status, after, &serde_json::from_slice(body).unwrap_or_default())
}

/// What an answer with an error status means.
fn refused(status: u16, after: Option<Duration>, body: &Value) -> LlmError {
    // some wrap the error in a list, some not at all
    let body = body.get(0).unwrap_or(body);
    let error = body.get("error").unwrap_or(body);
    let message = error["message"].as_str().or(error.as_str()).unwrap_or_default();
    let said = format!("{} {message}", error["code"]).to_lowercase();
    let too_long = [
        "context_length_exceeded",
        "context length",
        "context window",
        "context size",
        "context limit",
        "maximum number of tokens",
        "input is too long",
        "prompt is too long",
        "too many tokens",
    ];
    let reason = Reason::new(message);
    match status {
        413 => LlmError::ContextTooLong,
        400 | 422 if too_long.iter().any(|sign| said.contains(sign)) => LlmError::ContextTooLong,
        401 | 403 => LlmError::Auth { status, reason },
        429 => LlmError::RateLimited { after, reason },
        408 | 504 => LlmError::Timeout,
        500.. => LlmError::Overloaded { status, after, reason },
        _ => LlmError::Refused { status, reason },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_are_told_apart() {
        let too_long = json!({"error": {"code": "context_length_exceeded"}}).to_string();
        assert!(matches!(refusal(400, None, too_long.as_bytes()), LlmError::ContextTooLong));
        assert!(matches!(refusal(400, None, b"<html>"), LlmError::Refused { status: 400, .. }));
        assert!(matches!(refusal(401, None, b""), LlmError::Auth { status: 401, .. }));
        let after = Some(Duration::from_secs(2));
        assert!(matches!(refusal(429, after, b""), LlmError::RateLimited { after: Some(_), .. }));
        assert!(matches!(refusal(503, None, b""), LlmError::Overloaded { status: 503, .. }));
        assert!(matches!(refusal(302, None, b""), LlmError::Refused { status: 302, .. }));
        let said =
            json!({"error": {"message": format!("no\nkey sk-1 {}", "x".repeat(400))}}).to_string();
        let told = refusal(401, None, said.as_bytes()).without(&[SecretString::from("sk-1")]);
        let told = told.to_string();
        assert!(
            told.starts_with("the model's service refused the key (HTTP 401): no key [key] xxx"),
            "{told}"
        );
        assert!(told.len() < 400, "{told}");
        let inside = |error: Value| check(&json!({"error": error})).expect_err("an error");
        assert!(matches!(inside(json!({"message": "x"})), LlmError::Overloaded { .. }));
        assert!(matches!(inside(json!({"code": 429})), LlmError::RateLimited { .. }));
        assert!(matches!(inside(json!({"type": "overloaded_error"})), LlmError::Overloaded { .. }));
        assert!(check(&json!({"error": null})).is_ok());
    }

    #[test]
    fn the_route_follows_the_base_url_and_keeps_its_query() {
        let access = Access {
            vendor_url: "",
            version: Some("/v1"),
            route: "/messages",
            key_header: None,
            headers: &[],
        };
        let at = |base: &str| url(base, &access).map(String::from);
        assert_eq!(at("http://a").as_deref(), Some("http://a/v1/messages"));
        assert_eq!(at("http://a/v1/").as_deref(), Some("http://a/v1/messages"));
        assert_eq!(at("http://a/x?y=1").as_deref(), Some("http://a/x/v1/messages?y=1"));
        assert_eq!(at("nowhere"), None);
        assert_eq!(at("data:x"), None);
    }
}
