//! Idempotency-Key: what was begun under a key is not begun again.

use reqwest::multipart::{Form, Part};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::model::{Reply, StubModel, run, text};
use crate::support::server::{Server, caller, open_folder};
use crate::support::sse;
use crate::support::{Caller, answer, problem};

fn keyed(caller: &Caller, path: &str, key: &str) -> reqwest::RequestBuilder {
    caller.request(Method::POST, path).header("idempotency-key", key)
}

async fn send(caller: &Caller, path: &str, key: &str, body: &Value) -> (StatusCode, Value) {
    answer(keyed(caller, path, key).json(body)).await
}

#[tokio::test]
async fn the_same_exec_again_is_not_run_again() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("n = 0").await;
    let body = json!({"code": "n += 1; n", "env": {"A": "1"}});
    let first = send(&caller, &session.path("/exec"), "exec-1", &body).await;
    assert_eq!((first.0.as_u16(), &first.1["text"]), (200, &json!("1")));
    assert_eq!(send(&caller, &session.path("/exec"), "exec-1", &body).await, first);
    assert_eq!(session.text("n").await, "1");
    for other in [
        json!({"code": "n += 2; n", "env": {"A": "1"}}),
        json!({"code": "n += 1; n", "env": {"A": "2"}}),
        json!({"code": "n += 1; n"}),
    ] {
        let refused = send(&caller, &session.path("/exec"), "exec-1", &other).await;
        assert_eq!(problem(&refused), (422, "idempotency_key_reused".into()));
    }
    let shell =
        send(&caller, &session.path("/shell"), "exec-1", &json!({"command": "echo hi"})).await;
    assert_eq!(
        (shell.0.as_u16(), &shell.1["stdout"]),
        (200, &json!("hi\n")),
        "a key holds for its route"
    );
    let bad = keyed(&caller, &session.path("/exec"), "a b").json(&body);
    assert_eq!(problem(&answer(bad).await), (400, "malformed_header".into()));
}

#[tokio::test]
async fn of_many_at_once_one_runs() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("n = 0").await;
    let body = json!({"code": "import time; time.sleep(0.2); n += 1; n"});
    let path = session.path("/exec");
    let all = futures::future::join_all((0..6).map(|_| send(&caller, &path, "many", &body))).await;
    for (status, answer) in &all {
        match status.as_u16() {
            200 => assert_eq!(answer["text"], "1"),
            other => assert_eq!((other, &answer["code"]), (409, &json!("idempotency_in_progress"))),
        }
    }
    assert!(all.iter().any(|(status, _)| *status == 200));
    assert_eq!(session.text("n").await, "1");
    assert_eq!(send(&caller, &path, "many", &body).await.1["text"], "1");
}

#[tokio::test]
async fn a_session_is_made_once() {
    let caller = caller();
    let first = send(&caller, "/v1/sessions", "session-1", &json!({"metadata": {"a": "b"}})).await;
    assert_eq!(first.0, StatusCode::CREATED);
    let again = send(&caller, "/v1/sessions", "session-1", &json!({"metadata": {"a": "b"}})).await;
    assert_eq!((again.0, &again.1["id"]), (StatusCode::CREATED, &first.1["id"]));
    let other = send(&caller, "/v1/sessions", "session-1", &json!({})).await;
    assert_eq!(problem(&other), (422, "idempotency_key_reused".into()));
}

#[tokio::test]
async fn an_execute_with_files_is_the_same_whatever_its_form() {
    let caller = caller();
    let body = json!({"code": "print(open('a').read()); open('o', 'w').write('x')", "files": [{"name": "a", "content_base64": "aGk="}], "include": ["content"]});
    let first = send(&caller, "/v1/execute", "execute-1", &body).await;
    assert_eq!(first.1["stdout"], "hi\n", "{}", first.1);
    let again = send(&caller, "/v1/execute", "execute-1", &body).await;
    assert_eq!(
        (&again.1["run_id"], &again.1["output_files"]),
        (&first.1["run_id"], &first.1["output_files"]),
        "contents and all"
    );
    let (_, runs) = caller
        .get(&format!("/v1/runs?session_id={}", first.1["session_id"].as_str().unwrap()))
        .await;
    assert_eq!(runs["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_question_is_asked_once_and_its_boundary_does_not_matter() {
    let question = StubModel::shared().script("once", &[run(&["1"]), text("answer")]);
    let caller = caller();
    let ask = |content: &'static str| {
        let form = Form::new()
            .part("request", Part::text(json!({"message": question}).to_string()))
            .part("file", Part::text(content).file_name("a.txt"));
        answer(keyed(&caller, "/v1/interpret", "ask-1").multipart(form))
    };
    let first = ask("x").await;
    assert_eq!(first.1["text"], "answer", "{}", first.1);
    assert_eq!(ask("x").await, first);
    assert_eq!(problem(&ask("y").await), (422, "idempotency_key_reused".into()));
    assert_eq!(StubModel::shared().requests("once").len(), 2);

    let failing = StubModel::shared().script("once-fails", &[Reply::Fault(401, json!({}))]);
    let first = send(&caller, "/v1/interpret", "ask-2", &json!({"message": failing})).await;
    let again = send(&caller, "/v1/interpret", "ask-2", &json!({"message": failing})).await;
    assert_eq!(
        (problem(&first), problem(&again)),
        ((502, "model_unavailable".into()), (502, "model_unavailable".into()))
    );
    assert_eq!(first.1["run_id"], again.1["run_id"]);
}

#[tokio::test]
async fn a_keyed_request_goes_on_when_its_caller_is_gone() {
    let caller = caller();
    let session = caller.session().await;
    let body = json!({"code": "import time; time.sleep(1); x = 'whole'; x"});
    let impatient = keyed(&caller, &session.path("/exec"), "gone")
        .json(&body)
        .timeout(std::time::Duration::from_millis(300));
    assert!(impatient.send().await.is_err());
    assert_eq!(
        problem(&send(&caller, &session.path("/exec"), "gone", &body).await),
        (409, "idempotency_in_progress".into())
    );
    assert_eq!(session.text("x").await, "'whole'");
    assert_eq!(send(&caller, &session.path("/exec"), "gone", &body).await.1["text"], "'whole'");
}

#[tokio::test]
async fn streams_and_later_work_are_keyed_too() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("n = 0").await;
    let body = json!({"code": "n += 1; print(n)"});
    let stream = || {
        keyed(&caller, &session.path("/exec"), "streamed")
            .header("accept", "text/event-stream")
            .json(&body)
            .send()
    };
    let first = sse::all(stream().await.unwrap()).await;
    assert_eq!(sse::all(stream().await.unwrap()).await, first);
    let later = || {
        answer(
            keyed(&caller, &session.path("/exec"), "later")
                .header("prefer", "respond-async")
                .json(&body),
        )
    };
    let (status, run) = later().await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let (status, again) = later().await;
    assert_eq!((status, &again["id"]), (StatusCode::ACCEPTED, &run["id"]));
    while caller.get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).await.1["status"]
        != "success"
    {
        tokio::task::yield_now().await;
    }
    assert_eq!(session.text("n").await, "2");
}

#[tokio::test]
async fn after_a_crash_the_key_says_that_it_is_unknown_and_runs_nothing() {
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let server = Server::start_in(&data_dir, &[]);
    let first = server.caller();
    let session = first.session().await;
    let body = json!({"code": "open('begun', 'w').close()\nimport time; time.sleep(60)"});
    let path = session.path("/exec");
    let running = send(&first, &path, "crash", &body);
    let killing = async {
        while session.download("begun").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
        server.signal(libc::SIGKILL);
    };
    let crashed =
        async { tokio::time::timeout(std::time::Duration::from_secs(5), running).await.is_err() };
    let (_, ()) = futures::future::join(
        futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(crashed)),
        killing,
    )
    .await;
    server.wait();
    let again = Server::start_in(&data_dir, &[]);
    let (status, execution) = send(&again.caller(), &path, "crash", &body).await;
    assert_eq!(
        (status.as_u16(), &execution["status"], &execution["failure"]["retry_safe"]),
        (200, &json!("unknown"), &json!(false)),
        "{execution}"
    );
    assert_eq!(execution["code"], body["code"]);
}
