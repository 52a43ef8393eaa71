//! What became of a cell, by what became of its call: a test a row of the classification.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{furnished, gone, in_sandbox};
use crate::support::double::{self, Double};
use crate::support::{Caller, Session, problem};

const EXECUTE: &str = "^POST /execute$";
const START: &str = "^POST /process.Process/Start$";
/// A cell that leaves a trace when it runs.
const TRACED: &str = "open('ran', 'a').write('x')";

fn shared() -> (&'static Double, Caller) {
    let (double, server) = double::shared();
    (double, server.caller())
}

/// How often the traced cell has run.
async fn runs(session: &Session<'_>) -> usize {
    session.download("ran").await.text().await.unwrap().matches('x').count()
}

/// One fault, then whether the session is as it was.
async fn after(fault: Value) -> (StatusCode, Value, usize) {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    session.exec("x = 7\nopen('ran', 'w').close()").await;
    double.fault(in_sandbox(&id, EXECUTE, fault)).await;
    let answer = caller.post(&session.path("/exec"), json!({"code": TRACED})).await;
    let ran = runs(&session).await;
    let next = session.exec("x").await;
    assert_eq!((&next["text"], &next["state_lost"]), (&json!("7"), &json!(false)), "{next}");
    (answer.0, answer.1, ran)
}

#[tokio::test]
async fn a_refusal_of_the_code_interpreter_says_that_nothing_ran() {
    for (status, body) in [
        (400, json!("Only one of context_id or language can be provided")),
        (422, json!({"detail": [{"type": "missing"}]})),
        (500, json!("Failed to create context: the kernel is not available")),
    ] {
        let (answered, answer, ran) = after(json!({"status": status, "body": body})).await;
        assert_eq!(problem(&(answered, answer.clone())), (502, "provider_refused".into()));
        assert_eq!((&answer["retry_safe"], ran), (&json!(true), 0), "{status}: {answer}");
    }
}

#[tokio::test]
async fn a_refusal_of_the_proxy_says_that_nothing_ran() {
    for (status, body) in [
        (400, json!("Invalid sandbox port\n")),
        (
            403,
            json!({"sandboxId": "i", "message": "Sandbox is secured with traffic access token.", "code": 403}),
        ),
        (
            409,
            json!({"sandboxId": "i", "message": "The sandbox is still transitioning", "code": 409}),
        ),
    ] {
        let (answered, answer, ran) = after(json!({"status": status, "body": body})).await;
        assert_eq!(problem(&(answered, answer.clone())), (502, "provider_refused".into()));
        assert_eq!((&answer["retry_safe"], ran), (&json!(true), 0), "{status}: {answer}");
    }
    let body = json!({"sandboxId": "i", "message": "too many connections", "code": 429});
    let (answered, answer, ran) = after(json!({"status": 429, "body": body})).await;
    assert_eq!(problem(&(answered, answer.clone())), (429, "provider_limited".into()));
    assert!(answer["detail"].as_str().unwrap().contains("too many connections"));
    assert_eq!((&answer["retry_safe"], ran), (&json!(true), 0));
}

#[tokio::test]
async fn a_cloud_that_cannot_be_reached_has_run_nothing() {
    let double = Double::start(&[]);
    let server = double.serve(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    double.kill();
    let answer = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&answer), (503, "provider_not_ready".into()));
    assert_eq!(answer.1["retry_safe"], true);
}

#[tokio::test]
async fn a_context_that_is_gone_is_replaced_before_anything_runs() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    session.exec("x = 7\nopen('ran', 'w').close()").await;
    double.delete_contexts(&id).await;
    let execution = session.exec(&format!("{TRACED}\n'x' in globals()")).await;
    assert_eq!((&execution["text"], &execution["state_lost"]), (&json!("False"), &json!(true)));
    assert_eq!(runs(&session).await, 1);
}

#[tokio::test]
async fn a_sandbox_that_is_gone_has_run_nothing_and_the_session_is_lost() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    double.fault(in_sandbox(&id, EXECUTE, gone(&id))).await;
    let answer = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&answer), (410, "session_lost".into()));
    let (_, told) = caller.get(&session.path("")).await;
    assert_eq!((&told["state"], &told["end_reason"]), (&json!("ended"), &json!("lost")));
}

#[tokio::test]
async fn a_command_that_envd_refuses_has_not_run() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    let body = json!({"code": 401, "message": "unauthorized access"});
    double.fault(in_sandbox(&id, START, json!({"status": 401, "body": body}))).await;
    let command = json!({"command": "touch ran"});
    let answer = caller.post(&session.path("/shell"), command.clone()).await;
    assert_eq!(problem(&answer), (502, "provider_refused".into()));
    assert_eq!(answer.1["retry_safe"], true);
    assert_eq!(session.download("ran").await.status(), StatusCode::NOT_FOUND);
    double.fault(in_sandbox(&id, START, gone(&id))).await;
    let answer = caller.post(&session.path("/shell"), command).await;
    assert_eq!(problem(&answer), (410, "session_lost".into()));
}

#[tokio::test]
async fn inputs_that_do_not_arrive_keep_the_code_from_running() {
    let double = Double::start(&[]);
    let server = double.serve(&[]);
    let body = json!({"code": 507, "message": "not enough disk space"});
    double.fault(json!({"match": "^POST /files$", "status": 507, "body": body})).await;
    let request = json!({"code": "1", "files": [{"name": "in.txt", "content_base64": "YWJj"}]});
    let answer = server.caller().post("/v1/execute", request).await;
    assert_eq!(problem(&answer), (413, "sandbox_full".into()));
    assert!(double.requests("POST /execute").await.iter().all(|request| {
        let code = serde_json::from_str::<Value>(request["body"].as_str().unwrap()).unwrap();
        code["code"] != "1"
    }));
    double.has_sandboxes(0).await;
}

fn assert_unknown(status: StatusCode, execution: &Value) {
    assert_eq!(status, StatusCode::OK, "{execution}");
    let failure = &execution["failure"];
    let told = (&execution["status"], &failure["kind"], &failure["retry_safe"]);
    assert_eq!(told, (&json!("unknown"), &json!("sandbox_lost"), &json!(false)), "{execution}");
    assert_eq!((&execution["exit_code"], &execution["duration_ms"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn a_connection_that_breaks_before_its_answer_leaves_the_outcome_unknown() {
    let (status, execution, _) = after(json!({"action": "reset"})).await;
    assert_unknown(status, &execution);
}

#[tokio::test]
async fn a_failure_between_us_and_the_sandbox_leaves_the_outcome_unknown() {
    let port = json!({"sandboxId": "i", "message": "The sandbox is running but port is not open", "port": 49999, "code": 502});
    for (status, body) in [
        (502, port),
        (502, json!("Failed to route request to sandbox")),
        (502, json!("<html><body>502 Bad Gateway: was not found</body></html>")),
        (500, json!("Unexpected error when routing request")),
        (503, json!("<html>503</html>")),
        (504, json!({"code": 504, "message": "timeout"})),
        (499, json!("")),
        (418, json!("something that nobody knows")),
    ] {
        let (answered, execution, _) = after(json!({"status": status, "body": body})).await;
        assert_unknown(answered, &execution);
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_leaves_the_outcome_unknown_with_what_came() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    session.exec("x = 7").await;
    double.fault(in_sandbox(&id, EXECUTE, json!({"action": "cut", "after": 2}))).await;
    let cell =
        json!({"code": "print('came', flush=True)\nimport time\ntime.sleep(0.2)\nprint('not')"});
    let (status, execution) = caller.post(&session.path("/exec"), cell).await;
    assert_unknown(status, &execution);
    assert_eq!(execution["stdout"], "came\n");
    let next = session.exec("x").await;
    assert_eq!((&next["text"], &next["state_lost"]), (&json!("7"), &json!(false)), "{next}");
    let (status, execution, _) = after(json!({"action": "cut", "after": 0})).await;
    assert_unknown(status, &execution);
}

#[tokio::test]
async fn an_answer_without_its_mark_of_the_end_leaves_the_outcome_unknown() {
    let (status, execution, ran) = after(json!({"action": "no_end"})).await;
    assert_unknown(status, &execution);
    assert_eq!(ran, 1, "it may have run, as here");
}

#[tokio::test]
async fn a_deployment_that_never_marks_the_end_can_be_set_up_so() {
    let (double, _) = shared();
    let server = double.serve_entry("require_end_event = false\n");
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    double.fault(in_sandbox(&id, EXECUTE, json!({"action": "no_end", "times": 2}))).await;
    assert_eq!(session.text("1 + 1").await, "2");
    let execution = session.exec("1 / 0").await;
    assert_eq!(execution["error_detail"]["name"], "ZeroDivisionError");
    double.fault(in_sandbox(&id, EXECUTE, json!({"action": "cut", "after": 1}))).await;
    let (status, execution) = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_unknown(status, &execution);
}

#[tokio::test]
async fn a_code_interpreter_that_lost_its_kernel_leaves_the_outcome_unknown() {
    let error = |name: &str| {
        json!({"type": "error", "name": name, "value": "v", "traceback": ""}).to_string()
    };
    let end = json!({"type": "end_of_execution"}).to_string();
    for lines in [
        vec![error("WebSocketError"), error("UnexpectedEndOfExecution"), end.clone()],
        vec![error("UnexpectedEndOfExecution"), end.clone()],
        vec![error("WebSocketError"), end],
    ] {
        let (status, execution, _) = after(json!({"lines": lines})).await;
        assert_unknown(status, &execution);
    }
}

#[tokio::test]
async fn a_command_whose_end_is_not_told_is_unknown() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    for action in [json!({"action": "cut", "after": 1}), json!({"action": "reset"})] {
        double.fault(in_sandbox(&id, START, action)).await;
        let command = json!({"command": "echo x"});
        let (status, execution) = caller.post(&session.path("/shell"), command).await;
        assert_unknown(status, &execution);
    }
    let (_, execution) = caller.post(&session.path("/shell"), json!({"command": "echo x"})).await;
    assert_eq!(execution["stdout"], "x\n", "the sandbox lives on");
}

#[tokio::test]
async fn a_run_without_a_sign_of_life_is_given_up_after_a_minute() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    double.fault(in_sandbox(&id, EXECUTE, json!({"action": "head_only_hang"}))).await;
    let cell = json!({"code": "1", "timeout_seconds": 300});
    let (status, execution) = caller.post(&session.path("/exec"), cell).await;
    assert_unknown(status, &execution);
    assert_eq!(session.text("1 + 1").await, "2");
}

#[tokio::test]
async fn a_sandbox_that_vanishes_while_code_runs_is_told_as_such() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    let path = session.path("/exec");
    let code = "open('begun', 'w').close()\nimport time\ntime.sleep(60)";
    let running = caller.post(&path, json!({"code": code}));
    let vanishing = async {
        while session.download("begun").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
        double.kill_sandbox(&id).await;
    };
    let ((status, execution), ()) = tokio::join!(running, vanishing);
    assert_unknown(status, &execution);
    assert_eq!((&execution["state_lost"], &execution["files_lost"]), (&json!(true), &json!(true)));
    let message = execution["failure"]["message"].as_str().unwrap();
    assert!(message.contains("gone") && !message.contains("time"), "{message}");
    let answer = caller.post(&path, json!({"code": "1"})).await;
    assert_eq!(problem(&answer), (410, "session_lost".into()));
}

#[tokio::test]
async fn a_run_that_never_answers_ends_at_its_deadline_and_the_next_one_is_heard() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    session.exec("x = 7").await;
    for action in ["hang", "head_only_hang"] {
        double.fault(in_sandbox(&id, EXECUTE, json!({"action": action}))).await;
        let execution = session.exec_with(json!({"code": "1", "timeout_seconds": 0.5})).await;
        assert_eq!(
            (&execution["status"], &execution["failure"]),
            (&json!("timeout"), &Value::Null)
        );
        let next = session.exec("x").await;
        assert_eq!((&next["text"], &next["state_lost"]), (&json!("7"), &json!(false)), "{next}");
    }
}

#[tokio::test]
async fn one_bad_line_costs_no_more_than_that_line() {
    let (status, execution, _) = after(json!({"action": "garbage"})).await;
    let told = (status.as_u16(), &execution["status"], &execution["truncated"]);
    assert_eq!(told, (200, &json!("success"), &json!(true)), "{execution}");
}

#[tokio::test]
async fn a_kernel_that_was_replaced_in_silence_is_noticed() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    session.exec("x = 7").await;
    let count = json!({"type": "number_of_executions", "execution_count": 1}).to_string();
    let lines = [count, json!({"type": "end_of_execution"}).to_string()];
    double.fault(in_sandbox(&id, EXECUTE, json!({"lines": lines}))).await;
    assert_eq!(session.exec("x").await["state_lost"], true);
    assert_eq!(session.text("import os\nos.getcwd()").await, "/files", "it is set up again");
}

#[tokio::test]
async fn a_kernel_that_died_between_two_cells_is_told_by_the_next_execution() {
    let (_, caller) = shared();
    let session = caller.session_with(json!({"env": {"OWN": "yes"}})).await;
    let dying =
        "import os, threading\nthreading.Timer(0.1, lambda: os._exit(1)).start()\nos.getpid()";
    let pid = session.text(dying).await;
    let dead = format!("while kill -0 {pid} 2>/dev/null; do sleep 0.05; done; sleep 0.5");
    caller.post(&session.path("/shell"), json!({"command": dead})).await;
    // its environment is set by a cell of ours, which is the first one in the new kernel
    let cell = json!({"code": "import os\nos.getcwd(), os.environ['OWN'], os.environ['LENT']", "env": {"LENT": "too"}});
    let execution = session.exec_with(cell).await;
    assert_eq!(execution["text"], "('/files', 'yes', 'too')", "{execution}");
    assert_eq!(execution["state_lost"], true);
    assert_eq!(session.exec("1").await["state_lost"], false, "once is enough");
}

#[tokio::test]
async fn names_that_a_program_overwrites_are_no_matter_to_cells_of_ours() {
    let (_, caller) = shared();
    let session = caller.session().await;
    session.exec("exec = eval = print = input = json = os = sys = 5\nx = 7").await;
    let cell = json!({"code": "__import__('os').environ['LENT'], x", "env": {"LENT": "too"}});
    assert_eq!(session.exec_with(cell).await["text"], "('too', 7)");
    session.exec("__import__ = 5").await;
    let cell = json!({"code": "1 + 1", "env": {"LENT": "too"}});
    let execution = session.exec_with(cell).await;
    assert_eq!((&execution["text"], &execution["state_lost"]), (&json!("2"), &json!(true)));
}

#[tokio::test]
async fn a_command_of_unknown_outcome_does_not_run_on_beside_later_cells() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    double.fault(in_sandbox(&id, START, json!({"action": "cut", "after": 1}))).await;
    let command = json!({"command": "echo begun; sleep 1; echo late > late.txt"});
    let (status, execution) = caller.post(&session.path("/shell"), command).await;
    assert_unknown(status, &execution);
    let code = "import os, time\ntime.sleep(1.5)\nos.path.exists('late.txt')";
    assert_eq!(session.text(code).await, "False");
}

#[tokio::test]
async fn an_end_that_was_told_is_the_end_though_the_connection_stays_open() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    let count = json!({"type": "number_of_executions", "execution_count": 99}).to_string();
    let lines = [count, json!({"type": "end_of_execution"}).to_string()];
    double.fault(in_sandbox(&id, EXECUTE, json!({"lines": lines, "action": "hang"}))).await;
    let execution = session.exec_with(json!({"code": "1", "timeout_seconds": 10})).await;
    assert_eq!((&execution["status"], &execution["failure"]), (&json!("success"), &Value::Null));
}

#[tokio::test]
async fn a_probe_that_is_refused_costs_no_variables() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    session.exec("x = 7").await;
    double.fault(in_sandbox(&id, EXECUTE, json!({"action": "hang"}))).await;
    let busy = json!({"status": 429, "body": {"message": "too many connections", "code": 429}});
    double.fault(in_sandbox(&id, EXECUTE, busy)).await;
    let execution = session.exec_with(json!({"code": "1", "timeout_seconds": 0.5})).await;
    assert_eq!(
        (&execution["status"], &execution["state_lost"]),
        (&json!("timeout"), &json!(false))
    );
    let next = session.exec("x").await;
    assert_eq!((&next["text"], &next["state_lost"]), (&json!("7"), &json!(false)), "{next}");
}

#[tokio::test]
async fn a_file_whose_content_was_not_read_is_not_there() {
    let (double, caller) = shared();
    let (session, id) = furnished(&caller).await;
    let early = json!({"status": 200, "body": []});
    double.fault(in_sandbox(&id, "^POST /files$", early)).await;
    let (status, answer) = session.put("a.txt", "content").await;
    assert!(status.is_server_error(), "{answer}");
    assert_eq!(session.download("a.txt").await.status(), StatusCode::NOT_FOUND);
    let part = json!({"status": 206, "body": "789", "headers": {"Content-Range": "bytes 7-9/10"}, "skip": 1}); // the first look is at all of it
    session.put("b.txt", "0123456789").await;
    double.fault(in_sandbox(&id, "^GET /files$", part)).await;
    let request = caller.request(reqwest::Method::GET, &session.path("/files/b.txt"));
    let response = crate::support::send(request.header("range", "bytes=0-2")).await;
    let status = response.status();
    assert!(
        status.is_server_error(),
        "another part than was asked for: {status} {:?}",
        response.text().await
    );
}
