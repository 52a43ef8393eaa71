//! Traces: what a request was made of, as a collector gets it.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

use crate::packages;
use crate::support::collector::{Collector, Manner, Span};
use crate::support::model::{KEY, Reply, StubModel, run, text};
use crate::support::server::{Server, command, open_folder};
use crate::support::{Caller, answer, must_come, send, sse};

const SERVER: i32 = 2;
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa00000217";

fn serve(collector: &Collector, more: &[(&str, &str)]) -> Server {
    // made for its session, and within its request
    let own = [("OTLP_ENDPOINT", collector.url.as_str()), ("LOCAL_POOL", "0")];
    Server::start(&[&own, more].concat())
}

fn model_settings(model: &StubModel) -> [(&str, &str); 3] {
    [("MODEL", "stub"), ("MODEL_BASE_URL", &model.base_url), ("MODEL_API_KEY", KEY)]
}

/// Ends the service, which sends what it has, and gives how long that took.
fn end(server: &Server) -> Duration {
    let started = Instant::now();
    server.signal(rustix::process::Signal::TERM.as_raw());
    assert!(server.wait().success(), "{}", server.log());
    started.elapsed()
}

/// The one span of this name.
fn one<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    let [span] = found.as_slice() else { panic!("one {name} in {spans:#?}") };
    span
}

/// The names of a span's children, in the order in which they began.
fn below(spans: &[Span], parent: &Span) -> Vec<String> {
    let is_below = |span: &&Span| span.parent == parent.id && span.trace_id == parent.trace_id;
    spans.iter().filter(is_below).map(|span| span.name.clone()).collect()
}

/// Whether one lies within the other.
fn within(inner: &Span, outer: &Span) -> bool {
    outer.start <= inner.start && inner.start <= inner.end && inner.end <= outer.end
}

#[tokio::test]
async fn each_request_of_a_session_has_what_was_done_for_it_below_it() {
    let collector = Collector::start(Manner::Takes);
    let server = serve(&collector, &[]);
    let caller = server.caller();
    let session = caller.session().await;
    session.text("open('made.txt', 'w').write('12345')").await;
    assert_eq!(session.exec("1 / 0").await["status"], "error");
    let (status, _) = caller.post(&session.path("/shell"), json!({"command": "ls"})).await;
    assert_eq!(status, 200);
    assert!(session.put("a.csv", "1,2").await.0.is_success());
    assert_eq!(session.download("made.txt").await.text().await.unwrap(), "12345");
    assert_eq!(session.delete().await, 204);
    end(&server);

    let spans = collector.spans();
    let requests: Vec<_> = spans.iter().filter(|span| span.kind == SERVER).collect();
    let tree: Vec<_> =
        requests.iter().map(|request| (request.name.as_str(), below(&spans, request))).collect();
    let expected = [
        ("POST /v1/sessions", vec!["create".to_owned()]),
        ("POST /v1/sessions/{session_id}/exec", vec!["execute".to_owned()]),
        ("POST /v1/sessions/{session_id}/exec", vec!["execute".to_owned()]),
        ("POST /v1/sessions/{session_id}/shell", vec!["execute".to_owned()]),
        ("PUT /v1/sessions/{session_id}/files/{*path}", vec!["upload".to_owned()]),
        ("GET /v1/sessions/{session_id}/files/{*path}", vec!["download".to_owned()]),
        ("DELETE /v1/sessions/{session_id}", vec!["terminate".to_owned()]),
    ];
    assert_eq!(tree, expected);
    assert!(requests.iter().all(|request| request.parent.is_empty()));
    for span in spans.iter().filter(|span| span.kind != SERVER) {
        assert_eq!(span.attributes["provider"], "local", "{span:#?}");
        assert_eq!(span.attributes["session.id"], session.id, "{span:#?}");
    }
    let executes: Vec<_> = spans.iter().filter(|span| span.name == "execute").collect();
    let told = executes.iter().map(|span| {
        let word = |name: &str| span.attributes[name].as_str().unwrap();
        (word("kind"), word("outcome"), span.failed)
    });
    let expected =
        [("execute", "success", false), ("execute", "error", true), ("shell", "success", false)];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    assert_eq!(one(&spans, "upload").attributes["size_bytes"], 3);
    assert_eq!(one(&spans, "download").attributes["size_bytes"], 5);
}

#[tokio::test]
async fn an_interpret_with_a_file_is_one_trace_of_each_file_turn_and_cell() {
    let collector = Collector::start(Manner::Takes);
    let model = StubModel::start();
    let server = serve(&collector, &model_settings(&model));
    let message = model.script(
        "traced",
        &[
            run(&["open('b.txt', 'w').write(open('a.csv').read())"]),
            text("It is [copied](sandbox:/files/b.txt)."),
        ],
    );
    let file = json!({"name": "a.csv", "content_base64": STANDARD.encode("1,2")});
    let body = json!({"message": message, "files": [file]});
    let (status, run) = server.caller().post("/v1/interpret", body).await;
    assert_eq!((status.as_u16(), &run["status"]), (200, &json!("success")), "{run}");
    end(&server);

    let spans = collector.spans();
    let request = one(&spans, "POST /v1/interpret");
    // the first download is the file's head, which the model is shown
    let expected = [
        "create",
        "upload",
        "download",
        "model turn",
        "execute",
        "model turn",
        "download",
        "terminate",
    ];
    assert_eq!(below(&spans, request), expected);
    assert_eq!(spans.len(), 1 + expected.len());
    assert_eq!(request.attributes["run.id"], run["id"]);
    assert_eq!(one(&spans, "create").attributes["session.id"], run["session_id"]);
    assert_eq!(one(&spans, "execute").attributes["run.id"], run["id"]);
    for turn in spans.iter().filter(|span| span.name == "model turn") {
        assert_eq!(turn.attributes["gen_ai.operation.name"], "chat");
        assert_eq!(turn.attributes["gen_ai.request.model"], "stub");
        assert_eq!(turn.attributes["gen_ai.usage.input_tokens"], 10);
        assert_eq!(turn.attributes["gen_ai.usage.output_tokens"], 5);
    }
    for span in &spans {
        assert_eq!(span.trace_id, request.trace_id);
        assert!(within(span, request), "{span:#?} in {request:#?}");
        assert_eq!(span.events, 0, "log lines are no part of a trace");
    }
}

#[tokio::test]
async fn the_tree_is_the_same_as_events_and_under_a_key() {
    let collector = Collector::start(Manner::Takes);
    let server = serve(&collector, &[]);
    let caller = server.caller();
    let post = || caller.request(Method::POST, "/v1/execute").json(&json!({"code": "6 * 7"}));
    let streamed = send(post().header("accept", "text/event-stream")).await;
    assert_eq!(sse::all(streamed).await.last().unwrap().data["status"], "success");
    assert_eq!(answer(post().header("idempotency-key", "once")).await.0, 200);
    end(&server);
    let spans = collector.spans();
    let requests: Vec<_> = spans.iter().filter(|span| span.kind == SERVER).collect();
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert_eq!(below(&spans, request), ["create", "execute", "terminate"]);
        assert!(request.attributes["run.id"].is_string());
    }
}

#[tokio::test]
async fn no_word_of_callers_models_or_programs_is_in_a_trace() {
    let collector = Collector::start(Manner::Takes);
    let model = StubModel::start();
    let server = serve(&collector, &model_settings(&model));
    let caller = server.caller();
    let code = "# canary-code\nprint('canary' + '-output')\nopen('canary-made', 'w').write('x')";
    let message = model.script("canary-message", &[run(&[code]), text("canary-answer")]);
    let body = json!({
        "message": message,
        "instructions": "canary-instructions",
        "files": [{"name": "canary-file", "content_base64": STANDARD.encode("canary-content")}],
        "env": {"CANARY_NAME": "canary-value"},
        "metadata": {"canary-key": "canary-note"},
    });
    assert_eq!(caller.post("/v1/interpret", body).await.0, 200);
    let session = caller.session_with(json!({"metadata": {"a": "canary-session"}})).await;
    session.exec("raise ValueError('canary-error')").await;
    session.exec_with(json!({"code": "input()", "stdin": "canary-stdin"})).await;
    assert!(session.put("canary-put", "canary-put-content").await.0.is_success());
    assert_eq!(session.download("canary-put").await.status(), 200);
    assert_eq!(session.download("canary-absent").await.status(), 404);
    assert_eq!(caller.get("/canary-path?canary=query").await.0, 404);
    assert_eq!(session.delete().await, 204);
    end(&server);

    assert!(collector.spans().len() > 12, "all of it was traced");
    for (_, body) in collector.requests() {
        let text = String::from_utf8_lossy(&body).to_lowercase();
        assert!(!text.contains("canary"), "{text}");
    }
}

#[tokio::test]
async fn a_callers_traceparent_is_the_parent_and_what_is_none_begins_a_trace() {
    let collector = Collector::start(Manner::Takes);
    let server = serve(&collector, &[]);
    let caller = server.caller();
    let with = async |id: &str, traceparents: &[String]| {
        let mut request = caller.request(Method::GET, "/v1/sessions").header("x-request-id", id);
        for traceparent in traceparents {
            request = request.header("traceparent", traceparent);
        }
        assert_eq!(answer(request).await.0, 200, "{id}");
    };
    let good = format!("00-{TRACE}-{CALLER}-01");
    with("good", std::slice::from_ref(&good)).await;
    with("none", &[]).await;
    with("short", &[format!("00-{TRACE}-{CALLER}")]).await;
    with("zero", &[format!("00-{}-{CALLER}-01", "0".repeat(32))]).await;
    with("shouted", &[format!("00-{}-{CALLER}-01", TRACE.to_uppercase())]).await;
    with("twice", &[good.clone(), good]).await;
    with("unsampled", &[format!("00-{TRACE}-{CALLER}-00")]).await;
    end(&server);

    let spans = collector.spans();
    let of = |id: &str| spans.iter().find(|span| span.attributes["request.id"] == id);
    let child = of("good").unwrap();
    assert_eq!((child.trace_id.as_str(), child.parent.as_str()), (TRACE, CALLER));
    for id in ["none", "short", "zero", "shouted", "twice"] {
        let root = of(id).unwrap();
        assert_eq!(root.parent, "", "{id}");
        assert_ne!(root.trace_id, TRACE, "{id}");
    }
    assert!(of("unsampled").is_none(), "its caller does not want it traced");
    assert_eq!(spans.len(), 6);
}

#[tokio::test]
async fn a_request_says_what_it_was_and_how_it_ended_and_health_is_no_trace() {
    let collector = Collector::start(Manner::Takes);
    let model = StubModel::start();
    let server = serve(&collector, &model_settings(&model));
    let caller = server.caller();
    for path in ["/healthz", "/readyz", "/v1/runs?limit=7", "/v1/nothing-of-ours"] {
        caller.get(path).await;
    }
    let odd = caller.request(Method::from_bytes(b"SECRETLY").unwrap(), "/v1/runs");
    assert_eq!(answer(odd).await.0, 405);
    let script = [Reply::Fault(400, json!({"error": {"message": "no"}}))];
    let message = model.script("refuses", &script);
    assert_eq!(caller.post("/v1/interpret", json!({"message": message})).await.0, 502);
    end(&server);
    for line in server.log().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line.get("span").is_none() && line.get("spans").is_none(), "{line}");
    }

    let spans = collector.spans();
    let requests: Vec<_> = spans.iter().filter(|span| span.kind == SERVER).collect();
    let names: Vec<_> = requests.iter().map(|span| span.name.as_str()).collect();
    let expected = ["GET /v1/runs", "GET", "HTTP /v1/runs", "POST /v1/interpret"];
    assert_eq!(names, expected);
    let told = |span: &Span, name: &str| span.attributes.get(name).cloned().unwrap_or_default();
    let [listed, unknown, odd, failed] = requests.as_slice() else { panic!("four") };
    assert_eq!(told(listed, "http.request.method"), "GET");
    assert_eq!(told(listed, "http.route"), "/v1/runs");
    assert_eq!(told(listed, "http.response.status_code"), 200);
    assert_eq!(told(unknown, "http.response.status_code"), 404);
    assert_eq!(told(unknown, "http.route"), Value::Null, "a path is the caller's own word");
    assert_eq!(told(odd, "http.request.method"), "_OTHER");
    assert_eq!(told(failed, "http.response.status_code"), 502);
    assert_eq!(told(failed, "error.type"), "502");
    let failures: Vec<_> = requests.iter().map(|span| span.failed).collect();
    assert_eq!(failures, [false, false, false, true]);
    for span in &spans {
        assert_eq!(span.resource["service.name"], "interpreterd");
        assert_eq!(span.resource["service.version"], env!("CARGO_PKG_VERSION"));
        let instance = span.resource["service.instance.id"].as_str().unwrap();
        assert!(uuid::Uuid::parse_str(instance).is_ok(), "{instance}");
    }
}

#[tokio::test]
async fn of_a_share_of_none_only_what_callers_trace_is_sent() {
    let collector = Collector::start(Manner::Takes);
    let server = serve(&collector, &[("TRACE_RATIO", "0")]);
    let caller = server.caller();
    caller.get("/v1/runs").await;
    let traced = caller.request(Method::GET, "/v1/sessions");
    answer(traced.header("traceparent", format!("00-{TRACE}-{CALLER}-01"))).await;
    end(&server);
    let spans = collector.spans();
    assert_eq!(one(&spans, "GET /v1/sessions").parent, CALLER);
    assert_eq!(spans.len(), 1);
}

#[tokio::test]
async fn an_async_runs_spans_keep_their_parent_and_its_request_ends_before() {
    let collector = Collector::start(Manner::Takes);
    let server = serve(&collector, &[]);
    let caller = server.caller();
    let later = caller.request(Method::POST, "/v1/execute").header("prefer", "respond-async");
    let (status, queued) = answer(later.json(&json!({"code": "6 * 7"}))).await;
    assert_eq!(status, 202, "{queued}");
    let path = format!("/v1/runs/{}", queued["id"].as_str().unwrap());
    let finished = must_come(async {
        loop {
            let (_, run) = caller.get(&path).await;
            if run["finished_at"].is_string() {
                return run;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(finished.await["status"], "success");
    end(&server);

    let spans = collector.spans();
    let request = one(&spans, "POST /v1/execute");
    let run = one(&spans, "run");
    assert_eq!((&run.parent, &run.trace_id), (&request.id, &request.trace_id));
    assert_eq!(run.attributes["run.id"], queued["id"]);
    assert_eq!(run.attributes["run.kind"], "execute");
    assert_eq!(request.attributes["run.id"], queued["id"]);
    assert_eq!(below(&spans, run), ["create", "execute", "terminate"]);
    assert!(request.end < run.end, "the answer does not wait for the run");
}

#[tokio::test]
async fn a_session_that_is_made_after_its_answer_is_below_the_request_that_asked_for_it() {
    let collector = Collector::start(Manner::Takes);
    let index = packages::usual();
    let settings = [
        ("OTLP_ENDPOINT", &*collector.url),
        ("LOCAL_POOL", "0"),
        ("LOCAL_PACKAGE_INDEX", &index.url),
    ];
    let server = Server::start(&settings);
    let caller = server.caller();
    let session = packages::starting(&index, &caller).await;
    index.open();
    assert_eq!(session.text("6 * 7").await, "42");
    end(&server);

    let spans = collector.spans();
    let request = one(&spans, "POST /v1/sessions");
    assert_eq!(below(&spans, request), ["prepare"]);
    let prepare = one(&spans, "prepare");
    assert_eq!(prepare.attributes["session.id"], session.id);
    assert_eq!(below(&spans, prepare), ["create"]);
    assert!(request.end < one(&spans, "create").start, "it was answered before");
    let exec = one(&spans, "POST /v1/sessions/{session_id}/exec");
    assert_eq!(below(&spans, exec), ["execute"]);
    assert_eq!(one(&spans, "terminate").parent, "", "the end of the service is no request");
}

/// Uses the service in the usual ways, which must work whatever the collector does.
async fn use_it(caller: &Caller) {
    let session = caller.session().await;
    for number in 0..20 {
        assert_eq!(session.text(&format!("{number} + 1")).await, (number + 1).to_string());
    }
    assert!(session.put("a.csv", "1,2").await.0.is_success());
    assert_eq!(session.delete().await, 204);
}

#[tokio::test]
async fn a_collector_that_is_away_fails_or_hangs_changes_nothing_but_a_line_in_the_log() {
    let away = {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", socket.local_addr().unwrap())
    };
    let failing = Collector::start(Manner::Fails);
    let hanging = Collector::start(Manner::Hangs);
    for (url, reason) in [(&away, "refused"), (&failing.url, "500"), (&hanging.url, "")] {
        let server = Server::start(&[("OTLP_ENDPOINT", url)]);
        use_it(&server.caller()).await;
        let took = end(&server);
        assert!(took < Duration::from_secs(8), "{url}: {took:?}");
        let log = server.log();
        let told: Vec<_> = log.lines().filter(|line| line.contains("collector")).collect();
        // the last ones are told of at the end
        assert!((1..=2).contains(&told.len()), "{told:#?}");
        assert!(told[0].contains(reason) && told[0].contains("\"spans\":"), "{told:#?}");
        assert!(!log.contains("\"level\":\"ERROR\""), "{log}");
    }
    assert!(!hanging.requests().is_empty(), "it was asked");
}

#[test]
fn a_setting_that_cannot_be_used_ends_the_start_with_a_sentence() {
    for (name, value, sentence) in [
        ("INTERPRETERD_OTLP_ENDPOINT", "localhost:4318", "otlp_endpoint must be a URL"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://a", "OTEL_EXPORTER_OTLP_ENDPOINT must be a URL"),
        ("INTERPRETERD_TRACE_RATIO", "2", "a number from 0 to 1 is needed"),
    ] {
        let folder = open_folder();
        let mut command = command();
        command.arg("serve").env("INTERPRETERD_DATA_DIR", folder.path()).env(name, value);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(sentence), "{told}");
    }
}
