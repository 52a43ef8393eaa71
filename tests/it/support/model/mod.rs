//! A stub of two model services that plays scripts and refuses what the real ones refuse.

mod anthropic;
mod openai;
mod reply;

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};

pub use anthropic::SIGNATURE;
pub use reply::{Arguments, Call, End, Index, Reply, Said, Shape, call, run, said_run, text};

pub const KEY: &str = "stub-model-key-0123456789";
/// Bytes at a time of a stream that is torn.
const TORN: usize = 7;

/// The stub; a script is chosen by `[script NAME]` in the first question.
pub struct StubModel {
    pub base_url: String,
    inside: Arc<Inside>,
}

#[derive(Default)]
struct Inside {
    scripts: Mutex<HashMap<String, Vec<Reply>>>,
    requests: Mutex<HashMap<String, Vec<Value>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Wire {
    OpenAi,
    Anthropic,
}

impl StubModel {
    /// The one that the shared service asks, on a thread of its own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<StubModel> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    pub fn start() -> Self {
        let inside = Arc::new(Inside::default());
        let app = Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/v1/messages", post(message))
            .with_state(Arc::clone(&inside));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, app).await.unwrap();
            });
        });
        Self { base_url, inside }
    }

    /// A settings file with more models of this stub: `claude` over the other wire, `seeing` with eyes.
    pub fn config(&self, folder: &Path) -> String {
        let (key, file) = (folder.join("key"), folder.join("models.toml"));
        std::fs::write(&key, format!("{KEY}\n")).unwrap();
        let model = |name: &str, protocol: &str| {
            format!(
                "[models.{name}]\nmodel = \"stub\"\nprotocol = \"{protocol}\"\nbase_url = \"{}\"\n\
                 api_key_file = \"{}\"\nvision = true\n",
                self.base_url,
                key.display()
            )
        };
        let models = [model("claude", "anthropic"), model("seeing", "openai")].concat();
        std::fs::write(&file, models).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// Sets a script and gives the question that plays it; its last reply is played again and again.
    pub fn script(&self, name: &str, replies: &[Reply]) -> String {
        self.inside.scripts.lock().unwrap().insert(name.to_owned(), replies.to_vec());
        format!("please [script {name}]")
    }

    /// The bodies of the requests that a script has had.
    pub fn requests(&self, name: &str) -> Vec<Value> {
        self.inside.requests.lock().unwrap().get(name).cloned().unwrap_or_default()
    }
}

impl Inside {
    /// The reply to a request, and which one of its script it is.
    fn play(&self, question: &str, body: &Value) -> Option<(usize, Reply)> {
        let name = question.split("[script ").nth(1)?.split(']').next()?;
        let mut requests = self.requests.lock().unwrap();
        let requests = requests.entry(name.to_owned()).or_default();
        requests.push(body.clone());
        let number = requests.len() - 1;
        let scripts = self.scripts.lock().unwrap();
        let script = scripts.get(name)?;
        Some((number, script.get(number).or(script.last())?.clone()))
    }
}

async fn complete(
    State(inside): State<Arc<Inside>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    if headers.get("authorization").is_none_or(|key| key != &format!("Bearer {KEY}")) {
        return fault(401, "no key");
    }
    if let Some(wrong) = openai::wrong_with(&body) {
        return fault(400, &wrong);
    }
    answer(Wire::OpenAi, &inside, &openai::question(&body), &body).await
}

async fn message(
    State(inside): State<Arc<Inside>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    // documented is the one, the vendor's own client sends the other
    let by_header = headers.get("x-api-key").is_some_and(|key| key == KEY);
    let as_bearer = headers.get("authorization").is_some_and(|key| key == &format!("Bearer {KEY}"));
    if !by_header && !as_bearer {
        return fault(401, "no key");
    }
    if headers.get("anthropic-version").is_none_or(|version| version != "2026-10-21") {
        return fault(400, "anthropic-version: a known version is required");
    }
    if let Some(wrong) = anthropic::wrong_with(&body) {
        return fault(400, &wrong);
    }
    answer(Wire::Anthropic, &inside, &anthropic::question(&body), &body).await
}

async fn answer(wire: Wire, inside: &Inside, question: &str, body: &Value) -> Response {
    let Some((number, reply)) = inside.play(question, body) else {
        return fault(404, "no such script");
    };
    match reply {
        Reply::Said(said) => said_in(wire, &said, number, body),
        Reply::Fault(status, body) => {
            (StatusCode::from_u16(status).unwrap(), Json(body)).into_response()
        }
        Reply::Http { status, headers, body } => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(Body::from(body)).unwrap()
        }
        Reply::Never => std::future::pending().await,
        // its connection ends with the task
        Reply::Drop => std::panic::resume_unwind(Box::new("dropped on purpose")),
    }
}

fn said_in(wire: Wire, said: &Said, number: usize, request: &Value) -> Response {
    let shape = &said.shape;
    if request["stream"] == true && !shape.whole {
        return streamed(wire, said, number, request);
    }
    if shape.error_after.is_some() {
        return (StatusCode::OK, Json(error())).into_response();
    }
    let body = match wire {
        Wire::OpenAi => openai::whole(said, number),
        Wire::Anthropic => anthropic::whole(said, number),
    };
    if shape.cut_after.is_some() || shape.short_after.is_some() {
        let text = body.to_string();
        let half = Bytes::copy_from_slice(&text.as_bytes()[..text.len() / 2]);
        return typed("application/json", broken_off(vec![half]));
    }
    if shape.endless {
        return typed("application/json", endless());
    }
    Json(body).into_response()
}

fn streamed(wire: Wire, said: &Said, number: usize, request: &Value) -> Response {
    let shape = &said.shape;
    let counted = request["stream_options"]["include_usage"] == true;
    let mut events = match wire {
        Wire::OpenAi => openai::events(said, number, counted),
        Wire::Anthropic => anthropic::events(said, number),
    };
    let cut = shape.cut_after.or(shape.short_after).or(shape.error_after);
    events.truncate(cut.unwrap_or(usize::MAX));
    if shape.error_after.is_some() {
        events.push(error().to_string());
    } else if cut.is_none() && !shape.no_done && wire == Wire::OpenAi {
        events.push("[DONE]".to_owned());
    }
    let end = if shape.crlf { "\r\n" } else { "\n" };
    let mut text = String::new();
    for event in &events {
        if shape.noise {
            text.push_str(&format!(": ping{end}{end}event: ping{end}data: {{\"type\": \"ping\"}}{end}{end}retry: 5{end}{end}"));
        }
        if wire == Wire::Anthropic {
            let kind = serde_json::from_str::<Value>(event).unwrap()["type"].clone();
            text.push_str(&format!("event: {}{end}", kind.as_str().unwrap()));
        }
        text.push_str(&format!("data: {event}{end}{end}"));
    }
    let size = if shape.torn { TORN } else { usize::MAX };
    let pieces =
        text.as_bytes().chunks(size.min(text.len().max(1))).map(Bytes::copy_from_slice).collect();
    let body = if shape.endless {
        endless()
    } else if shape.stays_open {
        let pieces: Vec<Bytes> = pieces;
        let open = stream::iter(pieces).map(Ok::<_, Infallible>).chain(stream::pending());
        Body::from_stream(open)
    } else if shape.cut_after.is_some() {
        broken_off(pieces)
    } else {
        Body::from_stream(stream::iter(pieces).map(Ok::<_, Infallible>))
    };
    typed("text/event-stream; charset=utf-8", body)
}

fn typed(kind: &str, body: Body) -> Response {
    Response::builder().header("content-type", kind).body(body).unwrap()
}

/// The pieces, and then the end of the connection.
fn broken_off(pieces: Vec<Bytes>) -> Body {
    let broken = Err(std::io::Error::other("broken off on purpose"));
    // what came before must be sent before it breaks
    let later = stream::once(async {
        tokio::task::yield_now().await;
        broken
    });
    Body::from_stream(stream::iter(pieces).map(Ok).chain(later))
}

/// Spaces without end.
fn endless() -> Body {
    let spaces = Bytes::from(vec![b' '; 1 << 16]);
    Body::from_stream(stream::repeat(spaces).map(Ok::<_, Infallible>))
}

/// What a tool may be called.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=64).contains(&name.len()) && name.chars().all(plain)
}

fn error() -> Value {
    json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
}

fn fault(status: u16, message: &str) -> Response {
    let body =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
    (StatusCode::from_u16(status).unwrap(), Json(body)).into_response()
}
