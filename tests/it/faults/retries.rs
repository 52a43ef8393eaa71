//! When a model is asked again, and when not.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::{ANSWER, answer_text, http};
use crate::support::model::{Reply, Shape, StubModel, run, text};
use crate::support::server::caller;
use crate::support::{answer, must_come, send, sse};

fn limited(seconds: &str) -> Reply {
    http(429, vec![("retry-after", seconds.to_owned())], "")
}

async fn later(body: &Value) -> String {
    let request = caller().request(Method::POST, "/v1/interpret").header("prefer", "respond-async");
    let (status, run) = answer(request.json(body)).await;
    assert_eq!(status, 202, "{run}");
    run["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_service_is_asked_again_when_it_says_so_and_not_before() {
    for wire in super::WIRES {
        let script = format!("retry-after-{wire}");
        let message = StubModel::shared().script(&script, &[limited("2"), text(ANSWER)]);
        let started = Instant::now();
        let (_, run) =
            caller().post("/v1/interpret", json!({"message": message, "model": wire})).await;
        assert_eq!((&run["text"], &run["turns"]), (&json!(ANSWER), &json!(1)), "{run}");
        // our own first pause is half a second at most
        assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
        assert_eq!(StubModel::shared().requests(&script).len(), 2);
    }
}

#[tokio::test]
async fn nothing_is_asked_again_once_text_was_told() {
    for wire in super::WIRES {
        for (name, after) in [("text", 4), ("nothing", 0)] {
            let script = format!("told-once-{wire}-{name}");
            let cut = answer_text().shaped(Shape { cut_after: Some(after), ..Shape::default() });
            let message = StubModel::shared().script(&script, &[cut, text(ANSWER)]);
            let request = caller().request(Method::POST, "/v1/interpret");
            let request = request.json(&json!({"message": message, "model": wire}));
            let request = request.header("accept", "text/event-stream");
            let events = sse::all(send(request).await).await;
            let told = events.iter().any(|event| event.name == "model.delta");
            let asked = StubModel::shared().requests(&script).len();
            assert_eq!((told, asked), (true, if after > 0 { 1 } else { 2 }), "{wire}, {name}");
            let status = if after > 0 { "error" } else { "success" };
            assert_eq!(events.last().unwrap().data["status"], status);
        }
    }
}

#[tokio::test]
async fn a_message_ends_with_its_mark_and_not_with_its_connection() {
    for wire in super::WIRES {
        let open = answer_text().shaped(Shape { stays_open: true, ..Shape::default() });
        let message = StubModel::shared().script(&format!("mark-{wire}"), &[open]);
        // less than is waited for more where the end has no mark
        let body = json!({"message": message, "model": wire, "timeout_seconds": 1.5});
        let request = caller().request(Method::POST, "/v1/interpret").json(&body);
        let response = send(request.header("accept", "text/event-stream")).await;
        let run = sse::all(response).await.pop().unwrap().data;
        assert_eq!((&run["status"], &run["text"]), (&json!("success"), &json!(ANSWER)), "{run}");
    }
}

#[tokio::test]
async fn a_run_is_cancelled_while_it_waits_to_ask_again() {
    let message =
        StubModel::shared().script("cancel-pause", &[run(&["x = 1"]), limited("30"), text("no")]);
    let id = later(&json!({"message": message})).await;
    let asked = async {
        while StubModel::shared().requests("cancel-pause").len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    must_come(asked).await;
    let started = Instant::now();
    let path = format!("/v1/runs/{id}");
    answer(caller().request(Method::POST, &format!("{path}/cancel"))).await;
    let events = send(caller().request(Method::GET, &format!("{path}/events"))).await;
    let events = must_come(sse::all(events)).await;
    assert_eq!(events.last().unwrap().data["status"], "cancelled");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

/// What a small text would become in memory is weighed before it is read.
#[tokio::test]
async fn messages_that_weigh_too_much_are_refused_and_the_service_stays_small() {
    let model = StubModel::start();
    let server = crate::support::server::Server::start(&[
        ("MODEL", "stub"),
        ("MODEL_BASE_URL", &model.base_url),
        ("MODEL_API_KEY", crate::support::model::KEY),
    ]);
    let caller = server.caller();
    let before = server.peak_bytes();
    let objects = vec![json!({"a": 0}); 200_000];
    let json_type = || vec![("content-type", "application/json".to_owned())];
    let events = || vec![("content-type", "text/event-stream".to_owned())];
    let message = json!({"role": "assistant", "content": "x", "extra": objects});
    let whole = json!({"choices": [{"message": message}]}).to_string();
    let pieces = vec![json!({"id": "0"}); 500_000];
    let pieces = json!({"choices": [{"delta": {"tool_calls": pieces}}]});
    let deep = format!("{{\"choices\": {}1{}}}", "[".repeat(100), "]".repeat(100));
    let long = json!({"choices": [{"message": {"content": "x".repeat(5 << 20)}}]}).to_string();
    let of_streams = format!("data: {pieces}\n\n");
    for (name, headers, body, streamed) in [
        ("objects", json_type(), whole, false),
        ("deep", json_type(), deep, false),
        ("long", json_type(), long, false),
        ("pieces", events(), of_streams, true),
    ] {
        let message = model.script(name, &[http(200, headers, &body)]);
        let request =
            caller.request(Method::POST, "/v1/interpret").json(&json!({"message": message}));
        let accept = if streamed { "text/event-stream" } else { "application/json" };
        let response = send(request.header("accept", accept)).await;
        let error = if streamed {
            sse::all(response).await.pop().unwrap().data["error"].clone()
        } else {
            assert_eq!(response.status(), 502, "{name}");
            let told: Value = response.json().await.unwrap();
            let path = format!("/v1/runs/{}", told["run_id"].as_str().unwrap());
            caller.get(&path).await.1["error"].clone()
        };
        assert!(
            error.as_str().unwrap().contains("too long, too deep or of too many parts"),
            "{name}: {error}"
        );
    }
    let grown = server.peak_bytes() - before;
    assert!(grown < 100 << 20, "grown by {grown} bytes");
}

#[tokio::test]
async fn arguments_nested_deep_are_told_and_the_conversation_stays_readable() {
    let deep = format!("{{\"code\": \"1\", \"x\": {}1{}}}", "[".repeat(121), "]".repeat(121));
    let replies = [
        crate::support::model::call("run_python", &deep).into(),
        run(&["print('seen it')"]),
        text("Done."),
        text("On."),
    ];
    let message = StubModel::shared().script("deep-arguments", &replies);
    let (_, first) = caller().post("/v1/interpret", json!({"message": message})).await;
    assert_eq!(
        (&first["text"], first["code_exec_results"].as_array().unwrap().len()),
        (&json!("Done."), 1)
    );
    let body = json!({"message": "and?", "previous_run_id": first["id"]});
    let (_, second) = caller().post("/v1/interpret", body).await;
    assert_eq!(second["text"], "On.");
    let told =
        StubModel::shared().requests("deep-arguments").pop().unwrap()["messages"].to_string();
    assert!(told.contains("nested too deep") && told.contains("seen it"), "{told}");
}

#[tokio::test]
async fn the_tokens_of_a_run_are_limited_and_an_answer_is_asked_for() {
    let model = StubModel::start();
    let server = crate::support::server::Server::start(&[
        ("MODEL", "stub"),
        ("MODEL_BASE_URL", &model.base_url),
        ("MODEL_API_KEY", crate::support::model::KEY),
        ("INTERPRET_TOKENS", "30"),
    ]);
    let caller = server.caller();
    // each turn counts 15
    let message = model.script("tokens", &[run(&["1"]), run(&["2"]), text("Enough.")]);
    let (_, answered) = caller.post("/v1/interpret", json!({"message": message})).await;
    assert_eq!((&answered["text"], &answered["turns"]), (&json!("Enough."), &json!(3)));
    assert_eq!(model.requests("tokens")[2]["tool_choice"], "none");
    let codes: Vec<Reply> = (0..9).map(|number| run(&[&number.to_string()])).collect();
    let message = model.script("tokens-for-ever", &codes);
    let (_, failed) = caller.post("/v1/interpret", json!({"message": message})).await;
    assert_eq!((&failed["failure"]["kind"], &failed["turns"]), (&json!("budget"), &json!(3)));
    assert_eq!(failed["code_exec_results"].as_array().unwrap().len(), 2);
}
