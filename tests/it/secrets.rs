//! No key is in any log, answer, row, file or sandbox: all of them are searched.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};

#[cfg(feature = "otlp")]
use crate::support::collector::{Collector, Manner};
use crate::support::model::{KEY, Reply, StubModel, run, text};
use crate::support::server::{Server, open_folder};
use crate::support::{Caller, answer, send, sse};

const HEADER: &str = "own-header-secret-9876543210";
const CALLER_KEY: &str = "caller-key-abcdefghijklmnop";
const COLLECTOR_KEY: &str = "collector-key-5566778899";
const ENV: &str = "value-of-a-callers-variable-77";
const LOOK: &str = "import os, glob\nseen = [dict(os.environ)]\nfor path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):\n    try: seen.append(open(path, 'rb').read())\n    except OSError: pass\nprint(seen)";

/// All that a service gave away.
#[derive(Default)]
struct Seen(Vec<(String, Vec<u8>)>);

impl Seen {
    fn add(&mut self, place: &str, content: impl Into<Vec<u8>>) {
        self.0.push((place.to_owned(), content.into()));
    }

    fn add_folder(&mut self, folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.add_folder(&path);
            } else if path.is_file() {
                self.add(&path.display().to_string(), std::fs::read(&path).unwrap());
            }
        }
    }

    /// Where this stands.
    fn places_of(&self, secret: &str) -> Vec<&str> {
        let holds =
            |content: &[u8]| content.windows(secret.len()).any(|part| part == secret.as_bytes());
        self.0
            .iter()
            .filter(|(_, content)| holds(content))
            .map(|(place, _)| place.as_str())
            .collect()
    }
}

fn config(model: &StubModel, folder: &Path) -> String {
    let file = folder.join("models.toml");
    let (base, key) = (&model.base_url, folder.join("key"));
    std::fs::write(&key, KEY).unwrap();
    let models = format!(
        "[models.first]\nbase_url = \"{base}\"\napi_key_env = \"OWN_KEY\"\nheaders = {{ x-own = \"{HEADER}\" }}\n\
         [models.second]\nprotocol = \"anthropic\"\nbase_url = \"{base}\"\napi_key_file = \"{}\"\n",
        key.display()
    );
    std::fs::write(&file, models).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Asks in every way, well and badly, and gives all that is answered.
async fn ask(caller: &Caller, model: &StubModel, name: &str) -> Vec<Value> {
    let told = json!({"error": {"message": format!("no such key: {KEY}"), "code": KEY}});
    let post = |path: &str| {
        caller.request(Method::POST, path).header("authorization", format!("Bearer {CALLER_KEY}"))
    };
    let mut answers = Vec::new();
    for (number, script) in [
        vec![run(&[LOOK]), text("seen")],
        vec![run(&["1"]), Reply::Fault(401, told.clone())],
        vec![Reply::Fault(400, told.clone())],
        vec![Reply::Drop],
    ]
    .into_iter()
    .enumerate()
    {
        let message = model.script(&format!("{name}-{number}"), &script);
        let body = json!({"message": message, "model": name, "env": {"OWN_VALUE": "x"}});
        let (status, run) = answer(post("/v1/interpret").json(&body)).await;
        let expected = if number == 0 { 200 } else { 502 };
        assert_eq!(status, expected, "{run}");
        answers.push(run);
        let streamed = post("/v1/interpret").json(&body).header("accept", "text/event-stream");
        let events = sse::all(send(streamed).await).await;
        answers.extend(events.into_iter().map(|event| event.data));
    }
    let secret_env = json!({"code": "1", "env": {"SECRET": ENV}});
    answers.push(answer(post("/v1/execute").json(&secret_env)).await.1);
    for path in
        ["/v1/models", "/v1/providers", "/v1/runs", "/v1/sessions", "/readyz", "/openapi.json"]
    {
        let get = caller.request(Method::GET, path);
        answers.push(answer(get.header("authorization", format!("Bearer {CALLER_KEY}"))).await.1);
    }
    answers
}

#[tokio::test]
async fn no_key_is_in_any_log_answer_row_file_or_sandbox() {
    let model = StubModel::start();
    let folder = open_folder();
    let data = folder.path().join("data");
    let config = config(&model, folder.path());
    let mut settings = vec![
        ("CONFIG", config.as_str()),
        ("MODEL", "first"),
        ("LOG", "trace"),
        ("API_KEYS", CALLER_KEY),
    ];
    let headers = format!("x-collector-key={COLLECTOR_KEY}");
    #[cfg(feature = "otlp")]
    let collector = Collector::start(Manner::Takes);
    #[cfg(feature = "otlp")]
    settings.push(("OTLP_ENDPOINT", &collector.url));
    settings.push(("OTLP_HEADERS", &headers));
    let server = Server::start_with(&data, &settings, &[("OWN_KEY", KEY)]);
    let caller = server.caller();
    let mut seen = Seen::default();
    for name in ["first", "second"] {
        for answer in ask(&caller, &model, name).await {
            seen.add("an answer", answer.to_string());
        }
    }
    let metrics = caller.request(Method::GET, "/metrics").bearer_auth(CALLER_KEY);
    let metrics = send(metrics).await.text().await.unwrap();
    assert!(metrics.contains("model=\"second\""), "{metrics}");
    seen.add("the metrics", metrics);
    server.signal(rustix::process::Signal::TERM.as_raw());
    assert!(server.wait().success());
    let log = server.log();
    assert!(log.contains("\"level\":\"TRACE\""), "all that can be logged is looked at");
    seen.add("the log", log);
    #[cfg(feature = "otlp")]
    for (head, body) in collector.requests() {
        assert_eq!(head["x-collector-key"], COLLECTOR_KEY, "the collector has its key");
        seen.add("a trace", body);
    }
    #[cfg(feature = "otlp")]
    assert!(seen.places_of("POST /v1/interpret").contains(&"a trace"), "traces are looked at");
    seen.add_folder(&data);
    assert!(
        seen.0.iter().any(|(place, _)| place.ends_with("interpreterd.db")),
        "rows are looked at"
    );
    assert!(seen.places_of("OWN_VALUE").contains(&"an answer"), "the sandbox told its environment");
    for secret in [KEY, HEADER, CALLER_KEY, ENV, COLLECTOR_KEY] {
        assert_eq!(seen.places_of(secret), Vec::<&str>::new(), "{secret}");
    }
}
