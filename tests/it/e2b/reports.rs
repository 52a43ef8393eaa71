//! What users of E2B and its clients report, as it goes here.

use futures::future::join_all;
use serde_json::{Value, json};

use super::{furnished, header, in_sandbox};
use crate::support::double::{self, Double};
use crate::support::problem;

const HTML: &str = "<html><head><title>502 Bad Gateway</title></head></html>";

/// e2b-dev/E2B 412, 339: code eats all there is, and every call takes for ever.
#[tokio::test]
async fn a_deadline_holds_without_the_sandboxs_help() {
    let (double, server) = double::shared();
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    for call in ["^POST /execute$", "^POST /contexts"] {
        double.fault(in_sandbox(&id, call, json!({"action": "hang", "times": 100}))).await;
    }
    let started = std::time::Instant::now();
    let execution = session.exec_with(json!({"code": "1", "timeout_seconds": 1})).await;
    assert_eq!(execution["status"], "timeout");
    assert!(started.elapsed().as_secs() < 30, "the answer does not wait for what does not come");
    let again = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&again), (410, "session_lost".into()));
    assert_eq!(caller.session().await.text("1 + 1").await, "2");
}

/// e2b-dev/E2B 1381, code-interpreter 147: sandboxes vanish long before their time.
#[tokio::test]
async fn a_sandbox_that_vanished_is_told_and_is_no_timeout() {
    let (double, server) = double::shared();
    let caller = server.caller();
    for route in ["/exec", "/files"] {
        let (session, id) = furnished(&caller).await;
        double.kill_sandbox(&id).await;
        let path = session.path(route);
        let answer = match route {
            "/exec" => caller.post(&path, json!({"code": "1"})).await,
            _ => caller.get(&path).await,
        };
        assert_eq!(answer.0.as_u16(), 410, "{}", answer.1);
        assert!(!answer.1.to_string().contains("timeout"), "{}", answer.1);
        let (_, told) = caller.get(&session.path("")).await;
        assert_eq!((&told["state"], &told["end_reason"]), (&json!("ended"), &json!("lost")));
    }
}

/// e2b-dev/E2B 592: a template without a start command.
#[tokio::test]
async fn a_template_without_a_code_interpreter_is_named_as_the_cause() {
    let double = Double::start(&[]);
    let server = double.serve(&[]);
    let fault = json!({"match": "^POST /contexts$", "status": 502, "body": HTML, "times": 100, "headers": {"Content-Type": "text/html"}});
    double.fault(fault).await;
    let answer = server.caller().post("/v1/sessions", json!({})).await;
    assert_eq!(problem(&answer), (502, "provider_refused".into()));
    assert!(answer.1["detail"].as_str().unwrap().contains("template"), "{}", answer.1);
    double.has_sandboxes(0).await;
}

/// code-interpreter 181, e2b-dev/E2B 921: every run breaks off without a word.
#[tokio::test]
async fn runs_that_break_off_twice_without_a_word_make_the_sandbox_a_broken_one() {
    let (double, server) = double::shared();
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    let cut = json!({"action": "cut", "after": 0, "times": 100});
    double.fault(in_sandbox(&id, "^POST /execute$", cut)).await;
    // the cell is the first, and our own question whether the kernel listens the second
    let execution = session.exec("1").await;
    let told = (&execution["status"], &execution["files_lost"]);
    assert_eq!(told, (&json!("unknown"), &json!(true)), "{execution}");
    let message = execution["failure"]["message"].as_str().unwrap();
    assert!(message.contains("template") && message.contains("twice"), "{message}");
    let answer = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&answer), (410, "session_lost".into()));
}

/// code-interpreter pull request 278: the kernel is not interrupted when the client leaves, and a run
/// that comes too early is never run.
#[tokio::test]
async fn a_kernel_that_was_not_interrupted_is_made_anew_and_that_is_said() {
    let double = Double::start(&["--interrupt-window", "3600"]);
    let server = double.serve(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    session.exec("x = 7").await;
    let cell = json!({"code": "import time\ntime.sleep(60)", "timeout_seconds": 1});
    let execution = session.exec_with(cell).await;
    assert_eq!((&execution["status"], &execution["state_lost"]), (&json!("timeout"), &json!(true)));
    assert_eq!(session.text("'x' in globals()").await, "False");
}

/// e2b-dev/E2B 1158, computesdk 574: calls without routing headers, keys of another form, a base URL
/// that is forgotten.
#[tokio::test]
async fn every_call_goes_to_the_configured_place_with_its_routing_headers() {
    let double = Double::start(&[]);
    let server = double.serve(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    session.exec("open('x', 'w').write('1')").await;
    session.put("y", "2").await;
    session.download("x").await;
    caller.post(&session.path("/shell"), json!({"command": "true"})).await;
    caller.delete(&session.path("/files/x")).await;
    let calls = double.requests("").await;
    let is_control = |request: &&Value| request["path"].as_str().unwrap().contains("sandboxes");
    let (control, traffic): (Vec<_>, Vec<_>) = calls.iter().partition(is_control);
    assert!(traffic.len() > 10 && control.len() > 1, "{} {}", traffic.len(), control.len());
    for call in traffic {
        for name in ["e2b-sandbox-id", "e2b-sandbox-port", "accept"] {
            assert!(header(call, name).is_some(), "{name}: {call}");
        }
        assert_eq!(header(call, "x-api-key"), None, "the key is the control plane's alone");
        assert_eq!(
            header(call, "connect-timeout-ms"),
            None,
            "the deadline is ours: e2b-dev/E2B 1074"
        );
    }
}

/// e2b-dev/E2B 801, 1418: many at once.
#[tokio::test]
async fn many_sandboxes_work_at_once() {
    let double = Double::start(&["--max-sandboxes", "40"]);
    let server = double.serve(&[]);
    let caller = server.caller();
    let sessions = join_all((0..20).map(|_| caller.session())).await;
    let runs = sessions.iter().enumerate().map(|(number, session)| async move {
        let code = format!("import time\ntime.sleep(0.2)\n{number} * 2");
        session.text(&code).await == (number * 2).to_string()
    });
    assert!(join_all(runs).await.iter().all(|right| *right));
}

/// e2b-dev/E2B 1130: a create hangs for minutes, and its sandbox is there afterwards.
#[tokio::test]
async fn a_create_that_hangs_is_given_up_and_its_sandbox_is_ended() {
    let double = Double::start(&[]);
    let server = double.serve(&[("CREATE_SECONDS", "1")]);
    // made, and the answer comes too late
    double.fault(json!({"match": "^POST /contexts$", "delay": 3})).await;
    let answer = server.caller().post("/v1/sessions", json!({})).await;
    assert_eq!(problem(&answer), (504, "provider_too_slow".into()));
    assert_eq!(answer.1["retry_safe"], true);
    double.has_sandboxes(0).await;
    double.fault(json!({"match": "^POST /v2/sandboxes$", "action": "hang"})).await;
    let answer = server.caller().post("/v1/sessions", json!({})).await;
    assert!(matches!(answer.0.as_u16(), 503 | 504), "{}", answer.1);
}

/// Whatever a program prints, the service has no more of it than it keeps.
#[tokio::test]
async fn a_flood_of_output_costs_the_service_little() {
    let double = Double::start(&[]);
    let server = double.serve(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    session.exec("print('x' * 1_000_000)").await;
    let before = server.peak_bytes();
    let execution = session.exec("for i in range(100): print('x' * 999_999)").await;
    let told = (&execution["stdout_bytes"], &execution["truncated"]);
    assert_eq!(told, (&json!(100_000_000), &json!(true)));
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB", grown >> 20);
    let endless = json!({"code": "while True: print('y' * 100)", "timeout_seconds": 1});
    assert_eq!(session.exec_with(endless).await["status"], "timeout");
    assert_eq!(session.text("1 + 1").await, "2");
}
