//! A stub of a chat-completions service that plays scripts and refuses what the real one refuses.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

pub const KEY: &str = "stub-model-key-0123456789";

/// The stub; a script is chosen by `[script NAME]` in the question.
pub struct StubModel {
    pub base_url: String,
    inside: Arc<Inside>,
}

#[derive(Default)]
struct Inside {
    scripts: Mutex<HashMap<String, Vec<Reply>>>,
    requests: Mutex<HashMap<String, Vec<Value>>>,
}

/// What the stub answers.
#[derive(Clone)]
pub enum Reply {
    Message(Value),
    Fault(u16, Value),
    /// No answer until the caller goes away.
    Never,
}

/// A text as the answer.
pub fn text(text: &str) -> Reply {
    Reply::Message(json!({"role": "assistant", "content": text}))
}

/// Calls of the tool with these codes.
pub fn run(codes: &[&str]) -> Reply {
    let call = |(number, code): (usize, &&str)| {
        let arguments = json!({"code": code}).to_string();
        json!({"id": format!("call_{number}"), "type": "function", "function": {"name": "run_python", "arguments": arguments}})
    };
    let calls: Vec<Value> = codes.iter().enumerate().map(call).collect();
    Reply::Message(json!({"role": "assistant", "content": null, "tool_calls": calls}))
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

    /// Sets a script and gives the question that plays it.
    pub fn script(&self, name: &str, replies: &[Reply]) -> String {
        self.inside.scripts.lock().unwrap().insert(name.to_owned(), replies.to_vec());
        format!("please [script {name}]")
    }

    /// The bodies of the requests that a script has had.
    pub fn requests(&self, name: &str) -> Vec<Value> {
        self.inside.requests.lock().unwrap().get(name).cloned().unwrap_or_default()
    }
}

async fn complete(
    State(inside): State<Arc<Inside>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> (StatusCode, Json<Value>) {
    if headers.get("authorization").is_none_or(|key| key != &format!("Bearer {KEY}")) {
        return fault(401, "no key");
    }
    if let Some(wrong) = wrong_with(&body) {
        return fault(400, wrong);
    }
    let messages = body["messages"].as_array().unwrap();
    let question = messages[1]["content"].as_str().unwrap();
    let name =
        question.split("[script ").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("");
    let turn = {
        let mut requests = inside.requests.lock().unwrap();
        let requests = requests.entry(name.to_owned()).or_default();
        requests.push(body.clone());
        requests.len() - 1
    };
    let script = inside.scripts.lock().unwrap().get(name).cloned().unwrap_or_default();
    match script.get(turn).or(script.last()) {
        Some(Reply::Message(message)) => {
            let answer = json!({"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 5}});
            (StatusCode::OK, Json(answer))
        }
        Some(Reply::Fault(status, body)) => {
            (StatusCode::from_u16(*status).unwrap(), Json(body.clone()))
        }
        Some(Reply::Never) => std::future::pending().await,
        None => fault(404, "no such script"),
    }
}

fn fault(status: u16, message: &str) -> (StatusCode, Json<Value>) {
    (StatusCode::from_u16(status).unwrap(), Json(json!({"error": {"message": message}})))
}

/// What the real service refuses: a call without its one result, a result without its call.
fn wrong_with(body: &Value) -> Option<&'static str> {
    let mut open: Vec<&str> = Vec::new();
    for message in body["messages"].as_array()? {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str()?;
            match open.iter().position(|open| *open == id) {
                Some(found) => open.remove(found),
                None => return Some("a result without its call"),
            };
            continue;
        }
        if !open.is_empty() {
            return Some("a call without its result");
        }
        let calls = message["tool_calls"].as_array();
        open.extend(calls.into_iter().flatten().filter_map(|call| call["id"].as_str()));
    }
    (!open.is_empty()).then_some("a call without its result")
}
