//! Cells out of time, and machines whose time is over.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{EXECUTE, furnished, in_machine, losses, machine_of};
use crate::support::agentcore::{self, AgentCore};
use crate::support::{must_come, problem};

const DEAF: &str = "print('begun', flush=True)\nimport time\nwhile True:\n  try:\n    while True: time.sleep(0.01)\n  except BaseException: pass";

#[tokio::test]
async fn the_alarm_in_a_cell_ends_it_in_time_and_keeps_its_state() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    session.exec("x = 7").await;
    for code in [
        "import time\ntime.sleep(60)",
        "while True: pass",
        "import subprocess\nsubprocess.run(['sleep', '60'])",
        "import asyncio\nawait asyncio.sleep(60)",
        "import time\nwhile True:\n  try: time.sleep(60)\n  except KeyboardInterrupt: pass",
    ] {
        let execution = session.exec_with(json!({"code": code, "timeout_seconds": 1})).await;
        assert_eq!(execution["status"], "timeout", "{code}: {execution}");
        let duration = execution["duration_ms"].as_f64().unwrap();
        assert!((1000.0..3500.0).contains(&duration), "{code}: {duration}");
        assert_eq!((losses(&execution), session.text("x").await), ((false, false), "7".into()));
    }
    assert_eq!(machine_of(&session).await, id);
    assert!(aws.machines().await.iter().any(|machine| machine["sessionId"] == id.as_str()));
}

#[tokio::test]
async fn a_cell_that_does_not_hear_its_alarm_costs_the_machine_and_that_is_said() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    let session = caller.session_with(json!({"env": {"KEPT": "yes"}})).await;
    let id = machine_of(&session).await;
    session.exec("x = 7\nopen('lost.txt', 'w').close()").await;
    let execution = session.exec_with(json!({"code": DEAF, "timeout_seconds": 1})).await;
    assert_eq!((&execution["status"], losses(&execution)), (&json!("timeout"), (true, true)));
    assert_eq!(execution["stdout"], "begun\n", "what it printed is not lost");
    let next = session.exec("import os\n'x' in globals(), os.listdir(), os.environ['KEPT']").await;
    assert_eq!(next["text"], "(False, [], 'yes')", "{next}");
    assert_eq!(losses(&next), (false, false), "it was said before");
    assert_ne!(machine_of(&session).await, id, "the session tells where it is now");
    must_come(async {
        while aws.machines().await.iter().any(|machine| machine["sessionId"] == id.as_str()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_interrupt_that_is_not_heard_costs_the_machine_too() {
    let (_, server) = agentcore::shared();
    let caller = server.caller();
    let session = caller.session().await;
    let code = DEAF.replacen("print", "open('begun', 'w').close()\nprint", 1);
    let running = session.exec(&code);
    let interrupting = async {
        must_come(async {
            while session.download("begun").await.status() != StatusCode::OK {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let (status, _) =
            caller.send(Method::POST, &session.path("/interrupt"), &Value::Null).await;
        assert!(status.is_success(), "{status}");
    };
    let (execution, ()) = tokio::join!(running, interrupting);
    assert_eq!(execution["failure"]["kind"], "interrupted", "{execution}");
    assert_eq!(losses(&execution), (true, true));
    assert_eq!(session.text("6 * 7").await, "42");
}

#[tokio::test]
async fn a_machine_that_aws_has_ended_is_replaced_and_that_is_said_once() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    session.exec("x = 7\nopen('lost.txt', 'w').close()").await;
    aws.kill_machine(&id).await;
    let executed = aws.executed().await;
    let execution = session.exec("import os\n'x' in globals(), os.listdir()").await;
    assert_eq!(
        (&execution["status"], &execution["text"]),
        (&json!("success"), &json!("(False, [])"))
    );
    assert_eq!(losses(&execution), (true, true), "{execution}");
    assert!(aws.executed().await > executed);
    assert_eq!(losses(&session.exec("1").await), (false, false));
    let id = machine_of(&session).await;
    aws.kill_machine(&id).await;
    let (_, files) = caller.get(&session.path("/files")).await;
    assert_eq!(files["data"], json!([]), "{files}");
    session.put("new.txt", "new").await;
    let execution = session.exec("open('new.txt').read()").await;
    assert_eq!((&execution["text"], losses(&execution)), (&json!("'new'"), (true, true)));
}

#[tokio::test]
async fn a_session_ends_when_its_machine_does_and_tells_when_that_is() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[("LIFETIME_SECONDS", "28800"), ("LIFETIME_SECONDS_MAX", "86400")]);
    let caller = server.caller();
    let refused = caller.post("/v1/sessions", json!({"lifetime_seconds": 28_790})).await;
    assert_eq!(problem(&refused), (422, "limit_out_of_range".into()));
    assert_eq!(refused.1["errors"][0]["pointer"], "/lifetime_seconds", "{}", refused.1);
    let (_, longest) = caller.post("/v1/sessions", json!({})).await;
    let (from, to) = (time(&longest["created_at"]), time(&longest["expires_at"]));
    assert!((28_760..=28_771).contains(&(to - from).whole_seconds()), "{longest}");
    let (_, short) = caller.post("/v1/sessions", json!({"lifetime_seconds": 60})).await;
    let path = format!("/v1/sessions/{}", short["id"].as_str().unwrap());
    let (status, _) = caller.send(Method::PATCH, &path, &json!({"lifetime_seconds": 800})).await;
    assert_eq!(status, StatusCode::OK, "its machine lives for 900 seconds");
    let bound = caller.send(Method::PATCH, &path, &json!({"lifetime_seconds": 1000})).await;
    assert_eq!(problem(&bound), (409, "lifetime_bound".into()));
    assert!(bound.1["detail"].as_str().unwrap().contains("cannot be kept for longer"));
}

fn time(value: &Value) -> time::OffsetDateTime {
    let format = &time::format_description::well_known::Rfc3339;
    time::OffsetDateTime::parse(value.as_str().unwrap(), format).unwrap()
}

#[tokio::test]
async fn a_cell_that_cannot_end_before_its_machine_is_refused_with_the_reason() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve_entry("session_seconds = 60\n");
    let caller = server.caller();
    let session = caller.session_with(json!({"lifetime_seconds": 20})).await;
    let cell = json!({"code": "open('ran', 'w').close()", "timeout_seconds": 300});
    let refused = caller.post(&session.path("/exec"), cell).await;
    assert_eq!(problem(&refused), (409, "sandbox_ends_too_soon".into()));
    let told = refused.1["detail"].as_str().unwrap();
    assert!(told.contains("the code may take 300: give it less time"), "{told}");
    assert_eq!(refused.1["errors"][0]["pointer"], "/timeout_seconds");
    let code = "import os\nos.path.exists('ran')";
    let cell = session.exec_with(json!({"code": code, "timeout_seconds": 10})).await;
    assert_eq!(cell["text"], "False");
}

#[tokio::test]
async fn a_session_whose_time_is_over_says_so() {
    let aws = AgentCore::start(&[]);
    let server = aws.serve(&[]);
    let caller = server.caller();
    let session = caller.session_with(json!({"lifetime_seconds": 1})).await;
    must_come(async {
        while caller.get(&session.path("")).await.1["state"] != "ended" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let after = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&after), (410, "session_expired".into()));
    must_come(async {
        while !aws.machines().await.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn twenty_fast_cells_are_twenty_calls() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    let calls = async || {
        let calls = aws.requests("POST ").await;
        calls.iter().filter(|call| call["session"] == id.as_str()).count()
    };
    let before = calls().await;
    for number in 0..20 {
        assert_eq!(session.text(&format!("{number} + 1")).await, (number + 1).to_string());
    }
    assert_eq!(calls().await - before, 20);
    aws.fault(in_machine(&id, EXECUTE, json!({"status": 404, "times": 1}))).await;
    let execution = session.exec("1 + 1").await;
    assert_eq!((&execution["text"], losses(&execution)), (&json!("2"), (true, true)));
}
