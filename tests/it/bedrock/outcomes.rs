//! What became of a cell, by what became of its call.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{COMMAND, EXECUTE, furnished, in_machine, losses, machine_of};
use crate::support::agentcore::{self, AgentCore};
use crate::support::{Caller, Session, problem};

/// A cell that leaves a trace when it runs.
const TRACED: &str = "open('ran', 'a').write('x')\nprint('it ran')";

/// What one faulty hand-over came to.
struct Came {
    status: StatusCode,
    answer: Value,
    /// How often the code has run.
    ran: usize,
    /// How often it was sent.
    sent: usize,
    /// What the next cell lost.
    lost: (bool, bool),
}

async fn runs(session: &Session<'_>) -> usize {
    session.download("ran").await.text().await.unwrap().matches('x').count()
}

async fn sent(aws: &AgentCore, id: &str) -> usize {
    let calls = aws.requests("POST ").await;
    let is_cell = |call: &&Value| call["tool"] == "executeCode" && call["session"] == id;
    calls.iter().filter(is_cell).filter(|call| is_run(call)).count()
}

/// Whether a hand-over asks our kernel to run a cell, and not whether it listens.
fn is_run(call: &Value) -> bool {
    use base64::Engine;
    let code = call["arguments"]["code"].as_str().unwrap();
    let told = code.rsplit_once("b64decode('").unwrap().1.split_once('\'').unwrap().0;
    let told = base64::engine::general_purpose::STANDARD.decode(told).unwrap();
    serde_json::from_slice::<Value>(&told).unwrap()["do"] == "run"
}

/// One fault in the hand-over of a traced cell.
async fn after(fault: Value) -> Came {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    session.exec("x = 7\nopen('ran', 'w').close()").await;
    let before = sent(aws, &id).await;
    aws.fault(in_machine(&id, EXECUTE, fault)).await;
    let cell = json!({"code": TRACED, "timeout_seconds": 2});
    let (status, answer) = caller.post(&session.path("/exec"), cell).await;
    let sent = sent(aws, &id).await - before;
    let ran = if machine_of(&session).await == id { runs(&session).await } else { 0 };
    let next = session.exec("'x' in globals()").await;
    assert_eq!(next["status"], "success", "{next}");
    Came { status, answer, ran, sent, lost: losses(&next) }
}

#[tokio::test]
async fn a_refusal_says_that_nothing_ran() {
    for status in [400, 403] {
        let came = after(json!({"status": status})).await;
        let told = (came.status, came.answer.clone());
        assert_eq!(problem(&told), (502, "provider_refused".into()));
        assert!(came.answer["detail"].as_str().unwrap().contains("Exception"), "{}", came.answer);
        assert_eq!(came.answer["retry_safe"], true);
        assert_eq!((came.ran, came.sent, came.lost), (0, 1, (false, false)), "{status}");
    }
}

#[tokio::test]
async fn limits_of_the_account_are_told_as_such() {
    for fault in [json!({"status": 402}), json!({"status": 429, "times": 4})] {
        let came = after(fault.clone()).await;
        let told = (came.status, came.answer.clone());
        assert_eq!(problem(&told), (429, "provider_limited".into()), "{fault}");
        assert_eq!((&came.answer["retry_safe"], came.ran), (&json!(true), 0));
    }
}

#[tokio::test]
async fn what_was_turned_away_for_a_moment_is_handed_over_again() {
    for fault in [json!({"status": 429, "times": 2}), json!({"status": 409, "times": 2})] {
        let came = after(fault.clone()).await;
        assert_eq!((&came.answer["status"], came.ran), (&json!("success"), 1), "{fault}");
        assert_eq!((came.sent, came.lost), (3, (false, false)));
    }
}

#[tokio::test]
async fn a_500_a_dropped_connection_and_a_cut_stream_run_the_code_once_at_most() {
    for (fault, ran) in [
        (json!({"status": 500}), 0),
        (json!({"status": 500, "after": true}), 1),
        (json!({"status": 502}), 0),
        (json!({"status": 503, "after": true}), 1),
        (json!({"status": 504}), 0),
        (json!({"action": "drop"}), 0),
        (json!({"action": "drop", "after": true}), 1),
        (json!({"action": "empty"}), 0),
        (json!({"action": "empty", "after": true}), 1),
        (json!({"action": "trunc"}), 1),
        (json!({"action": "bad_crc"}), 1),
        (json!({"action": "garbage"}), 0),
        (json!({"action": "silent"}), 1),
        (json!({"action": "mid", "exception": "throttlingException"}), 0),
        (json!({"action": "mid", "exception": "internalServerException", "after": true}), 1),
        (json!({"action": "mid", "exception": "error"}), 0),
        (json!({"action": "flood", "bytes": 40 << 20}), 0),
    ] {
        let came = after(fault.clone()).await;
        assert_eq!(came.status, StatusCode::OK, "{fault}: {}", came.answer);
        assert_eq!(came.answer["status"], "unknown", "{fault}: {}", came.answer);
        assert_eq!(came.answer["failure"]["retry_safe"], false);
        assert_eq!(losses(&came.answer), (false, false), "{fault}");
        assert_eq!((came.ran, came.sent, came.lost), (ran, 1, (false, false)), "{fault}");
    }
}

#[tokio::test]
async fn a_stalled_stream_runs_the_code_once_and_ends_with_its_time() {
    for (fault, ran) in [
        (json!({"action": "stall"}), 0),
        (json!({"action": "stall", "after": true}), 1),
        (json!({"action": "half_stall"}), 1),
        (json!({"action": "hang", "after": true}), 1),
    ] {
        let came = after(fault.clone()).await;
        assert_eq!(came.answer["status"], "timeout", "{fault}: {}", came.answer);
        let duration = came.answer["duration_ms"].as_f64().unwrap();
        assert!((2000.0..15_000.0).contains(&duration), "{duration}");
        assert_eq!((came.ran, came.sent, came.lost), (ran, 1, (false, false)), "{fault}");
    }
}

#[tokio::test]
async fn odd_streams_that_are_whole_are_read() {
    for fault in [
        json!({"action": "initial"}),
        json!({"action": "unknown_event"}),
        json!({"action": "two"}),
        json!({"action": "split"}),
        json!({"action": "slow_body", "seconds": 0.5}),
        json!({"action": "slow_head", "seconds": 0.5}),
        json!({"action": "trickle", "seconds": 0.5}),
    ] {
        let came = after(fault.clone()).await;
        assert_eq!(came.answer["status"], "success", "{fault}: {}", came.answer);
        assert_eq!((&came.answer["stdout"], came.ran), (&json!("it ran\n"), 1), "{fault}");
        assert_eq!(came.lost, (false, false));
    }
}

#[tokio::test]
async fn pictures_and_pages_that_the_service_shows_itself_are_outputs() {
    let came = after(json!({"action": "image"})).await;
    let outputs = came.answer["outputs"].as_array().unwrap();
    let kinds: Vec<&String> =
        outputs.iter().flat_map(|output| output["data"].as_object().unwrap().keys()).collect();
    assert_eq!(kinds, ["image/png", "text/html"], "{}", came.answer);
    assert!(outputs[0]["data"]["image/png"].as_str().unwrap().starts_with("iVBOR"));
}

#[tokio::test]
async fn an_uncaught_exception_is_the_codes_own_error() {
    let (_, server) = agentcore::shared();
    let caller = server.caller();
    let session = caller.session().await;
    let execution = session.exec("def f(): raise ValueError('no')\nf()").await;
    assert_eq!((&execution["status"], &execution["failure"]), (&json!("error"), &Value::Null));
    assert_eq!(execution["error_detail"]["name"], "ValueError");
    let traceback = execution["error"].as_str().unwrap();
    let frames =
        "Traceback (most recent call last):\n  File \"<cell 1>\", line 2, in <module>\n    f()";
    assert!(traceback.starts_with(frames), "{traceback}");
    assert!(!traceback.contains("interpreterd"), "{traceback}");
}

#[tokio::test]
async fn an_aws_that_cannot_be_reached_or_has_no_credentials_has_run_nothing() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    aws.kill();
    let answer = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&answer), (503, "provider_not_ready".into()));
    assert_eq!(answer.1["retry_safe"], true);
}

async fn shell(caller: &Caller, session: &Session<'_>, command: &str) -> (StatusCode, Value) {
    let body = json!({"command": command, "timeout_seconds": 2});
    caller.post(&session.path("/shell"), body).await
}

#[tokio::test]
async fn commands_are_handed_over_once_too() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    for (fault, status, ran) in [
        (json!({"status": 500}), "unknown", 0),
        (json!({"status": 500, "after": true}), "unknown", 1),
        (json!({"action": "drop", "after": true}), "unknown", 1),
        (json!({"action": "trunc"}), "unknown", 1),
        (json!({"action": "stall", "after": true}), "timeout", 1),
    ] {
        let (session, id) = furnished(&caller).await;
        session.exec("x = 7\nopen('ran', 'w').close()").await;
        aws.fault(in_machine(&id, COMMAND, fault.clone())).await;
        let (_, execution) = shell(&caller, &session, "printf x >> ran").await;
        assert_eq!(execution["status"], status, "{fault}: {execution}");
        assert_eq!(runs(&session).await, ran, "{fault}");
        let next = session.exec("x").await;
        assert_eq!((&next["text"], losses(&next)), (&json!("7"), (false, false)), "{fault}");
    }
}

#[tokio::test]
async fn an_outage_after_a_cell_costs_no_state() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    session.exec("x = 7").await;
    aws.fault(in_machine(&id, EXECUTE, json!({"action": "drop"}))).await;
    aws.fault(in_machine(&id, EXECUTE, json!({"action": "hang"}))).await;
    aws.fault(in_machine(&id, "sessions/get", json!({"status": 503, "times": 3}))).await;
    let execution = session.exec("1").await;
    assert_eq!((&execution["status"], losses(&execution)), (&json!("unknown"), (false, false)));
    let next = session.exec("x").await;
    assert_eq!((&next["text"], losses(&next)), (&json!("7"), (false, false)), "{next}");
    assert_eq!(machine_of(&session).await, id);
}

#[tokio::test]
async fn an_answer_that_is_far_too_long_costs_no_memory() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    let before = server.peak_bytes();
    aws.fault(json!({"match": EXECUTE, "action": "huge", "bytes": 100 << 20})).await;
    let execution = session.exec("1").await;
    assert_eq!(execution["status"], "unknown", "{}", execution["error"]);
    let grown = server.peak_bytes() - before;
    assert!(grown < 150 << 20, "{} MiB", grown >> 20);
    assert_eq!(session.text("6 * 7").await, "42");
}
