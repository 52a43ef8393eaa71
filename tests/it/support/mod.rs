//! The harness: a running service, a stub model, short words for calls.

#[cfg(feature = "bedrock")]
pub mod agentcore;
pub mod bucket;
#[cfg(feature = "otlp")]
pub mod collector;
pub mod double;
pub mod index;
pub mod live;
pub mod model;
pub mod postgres;
pub mod processes;
pub mod pydantic;
pub mod scrape;
pub mod seen;
pub mod server;
pub mod sse;
pub mod stub;
pub mod told;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// How long a test waits for what must come.
const WAIT_LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// Waits for what must come, and fails when it does not.
pub async fn must_come<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_LIMIT, waiting).await.expect("it must come within its time")
}

/// A client of one service, with short words for what tests do.
pub struct Caller {
    pub base: String,
    client: reqwest::Client,
}

impl Caller {
    pub fn new(base: &str) -> Self {
        interpreterd::net::install_crypto();
        #[expect(clippy::disallowed_methods, reason = "tests are callers, not the service")]
        let client =
            reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self { base: base.to_owned(), client }
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    /// Sends JSON and gives status and JSON.
    pub async fn send(&self, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
        answer(self.request(method, path).json(body)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.send(Method::POST, path, &body).await
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::GET, path)).await
    }

    pub async fn delete(&self, path: &str) -> StatusCode {
        send(self.request(Method::DELETE, path)).await.status()
    }

    /// The pool of the one provider there is, once it is full.
    pub async fn full_pool(&self) -> Value {
        must_come(async {
            loop {
                let (_, providers) = self.get("/v1/providers").await;
                let pool = providers["data"][0]["pool"][0].clone();
                if pool["ready"] == pool["size"] {
                    return pool;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// A new session with default settings.
    pub async fn session(&self) -> Session<'_> {
        self.session_with(json!({})).await
    }

    pub async fn session_with(&self, body: Value) -> Session<'_> {
        let (status, session) = self.post("/v1/sessions", body).await;
        assert_eq!(status, StatusCode::CREATED, "{session}");
        Session { caller: self, id: session["id"].as_str().unwrap().to_owned() }
    }
}

/// A session on the service.
pub struct Session<'a> {
    pub caller: &'a Caller,
    pub id: String,
}

impl Session<'_> {
    pub fn path(&self, rest: &str) -> String {
        format!("/v1/sessions/{}{rest}", self.id)
    }

    /// Runs a cell that the service must answer with 200.
    pub async fn exec(&self, code: &str) -> Value {
        self.exec_with(json!({"code": code})).await
    }

    pub async fn exec_with(&self, body: Value) -> Value {
        let (status, execution) = self.caller.post(&self.path("/exec"), body).await;
        assert_eq!(status, StatusCode::OK, "{execution}");
        execution
    }

    /// The text of a cell that must succeed.
    pub async fn text(&self, code: &str) -> String {
        let execution = self.exec(code).await;
        assert_eq!(execution["status"], "success", "{execution}");
        execution["text"].as_str().unwrap().to_owned()
    }

    pub async fn put(&self, path: &str, content: impl Into<reqwest::Body>) -> (StatusCode, Value) {
        let request = self.caller.request(Method::PUT, &self.file(path));
        answer(request.body(content)).await
    }

    pub async fn download(&self, path: &str) -> reqwest::Response {
        send(self.caller.request(Method::GET, &self.file(path))).await
    }

    pub async fn delete(&self) -> StatusCode {
        self.caller.delete(&self.path("")).await
    }

    fn file(&self, path: &str) -> String {
        let path = percent_encoding::utf8_percent_encode(path, percent_encoding::NON_ALPHANUMERIC);
        self.path(&format!("/files/{}", path.to_string().replace("%2F", "/")))
    }
}

/// Sends and gives the answer, its body unread.
pub async fn send(request: reqwest::RequestBuilder) -> reqwest::Response {
    let (method, path, response) = exchange(request).await;
    seen::note(&method, &path, response.status(), None);
    response
}

async fn exchange(request: reqwest::RequestBuilder) -> (Method, String, reqwest::Response) {
    let (client, request) = request.build_split();
    let request = request.unwrap();
    let (method, path) = (request.method().clone(), request.url().path().to_owned());
    (method, path, client.execute(request).await.unwrap())
}

/// Status and JSON of an answer; null for an empty one.
pub async fn answer(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let (method, path, response) = exchange(request).await;
    let status = response.status();
    let body = response.bytes().await.unwrap();
    let value = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&body).into_owned()));
    seen::note(&method, &path, status, Some(&value));
    (status, value)
}

/// The status and the code of a problem.
pub fn problem((status, body): &(StatusCode, Value)) -> (u16, String) {
    assert_eq!(body["status"], status.as_u16(), "{body}");
    assert!(body["request_id"].as_str().is_some_and(|id| !id.is_empty()), "{body}");
    (status.as_u16(), body["code"].as_str().unwrap_or_default().to_owned())
}
