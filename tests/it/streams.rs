//! Work as events, and later.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::model::{Call, Reply, StubModel, call, run, text};
use crate::support::server::{Server, caller};
use crate::support::sse::{self, SseEvent};
use crate::support::{Caller, answer, problem};

async fn stream(caller: &Caller, path: &str, body: &Value) -> reqwest::Response {
    let request = caller.request(Method::POST, path).header("accept", "text/event-stream");
    crate::support::send(request.json(body)).await
}

async fn later(caller: &Caller, path: &str, body: &Value) -> Value {
    let request = caller.request(Method::POST, path).header("prefer", "respond-async");
    let response = crate::support::send(request.json(body)).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert_eq!(response.headers()["preference-applied"], "respond-async");
    let place = response.headers()["location"].to_str().unwrap().to_owned();
    let run: Value = response.json().await.unwrap();
    assert_eq!(place, format!("/v1/runs/{}", run["id"].as_str().unwrap()));
    run
}

async fn events_of(caller: &Caller, run: &Value, last: Option<u64>) -> reqwest::Response {
    let path = format!("/v1/runs/{}/events", run["id"].as_str().unwrap());
    let mut request = caller.request(Method::GET, &path);
    if let Some(last) = last {
        request = request.header("last-event-id", last.to_string());
    }
    crate::support::send(request).await
}

fn names(events: &[SseEvent]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    names.dedup();
    names
}

fn joined(events: &[SseEvent], name: &str) -> String {
    events
        .iter()
        .filter(|event| event.name == name)
        .map(|event| event.data["text"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_cell_is_told_as_it_runs_and_its_answer_comes_last() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import sys, time\nprint('a\\n\\nb'); sys.stdout.flush()\ntime.sleep(0.2)\nprint('é', file=sys.stderr)\nopen('f.txt', 'w').write('x')\n6 * 7";
    let events =
        sse::all(stream(&caller, &session.path("/exec"), &json!({"code": code})).await).await;
    assert_eq!(
        names(&events),
        ["run.started", "stdout", "stderr", "output", "file", "run.completed"]
    );
    assert_eq!(
        (joined(&events, "stdout"), joined(&events, "stderr")),
        ("a\n\nb\n".to_owned(), "é\n".to_owned())
    );
    assert!(events.windows(2).all(|pair| pair[0].id < pair[1].id));
    let execution = &events.last().unwrap().data;
    assert_eq!(
        (&execution["status"], &execution["text"]),
        (&json!("success"), &json!("a\n\nb\né\n42"))
    );
    let run = json!({"id": execution["run_id"]});
    assert_eq!(
        sse::all(events_of(&caller, &run, None).await).await,
        events,
        "the events can be read again"
    );
    let rest = sse::all(events_of(&caller, &run, Some(2)).await).await;
    assert_eq!(rest, events[2..]);
}

#[tokio::test]
async fn shell_and_execute_are_told_too() {
    let caller = caller();
    let session = caller.session().await;
    let events = sse::all(
        stream(&caller, &session.path("/shell"), &json!({"command": "echo hi; exit 3"})).await,
    )
    .await;
    assert_eq!(
        (joined(&events, "stdout"), &events.last().unwrap().data["exit_code"]),
        ("hi\n".to_owned(), &json!(3))
    );
    let events = sse::all(
        stream(&caller, "/v1/execute", &json!({"code": "print(1); open('x', 'w').close()"})).await,
    )
    .await;
    assert_eq!(names(&events), ["run.started", "stdout", "file", "run.completed"]);
    assert_eq!(events.last().unwrap().data["output_files"][0]["path"], "x");
}

#[tokio::test]
async fn what_fails_before_it_begins_is_told_by_its_status() {
    let caller = caller();
    let session = caller.session().await;
    session.delete().await;
    let request =
        caller.request(Method::POST, &session.path("/exec")).header("accept", "text/event-stream");
    assert_eq!(
        problem(&answer(request.json(&json!({"code": "1"}))).await),
        (410, "session_deleted".into())
    );
    let request = caller.request(Method::POST, "/v1/execute").header("prefer", "respond-async");
    assert_eq!(
        problem(&answer(request.json(&json!({"code": "1", "timeout_seconds": 0}))).await),
        (422, "out_of_range".into())
    );
    let request =
        caller.request(Method::POST, &session.path("/exec")).header("prefer", "respond-async");
    assert_eq!(
        problem(&answer(request.json(&json!({"code": "1"}))).await),
        (410, "session_deleted".into())
    );
}

#[tokio::test]
async fn a_question_is_told_turn_by_turn() {
    let question = StubModel::shared().script(
        "told",
        &[run(&["print('x')", "open('o.txt', 'w').write('1')"]), text("[o](sandbox:/files/o.txt)")],
    );
    let caller = caller();
    let events =
        sse::all(stream(&caller, "/v1/interpret", &json!({"message": question})).await).await;
    let expected = [
        "run.started",
        "tool.started",
        "stdout",
        "tool.completed",
        "tool.started",
        "output",
        "file",
        "tool.completed",
        "model.delta",
        "run.completed",
    ];
    // the text came in several pieces
    let mut told = names(&events);
    told.dedup();
    assert_eq!(told, expected);
    let run = &events.last().unwrap().data;
    assert_eq!(
        (&run["status"], &run["output_files"][0]["linked"]),
        (&json!("success"), &json!(true)),
        "{run}"
    );
    assert_eq!(sse::all(events_of(&caller, run, None).await).await, events);
}

#[tokio::test]
async fn calls_of_a_question_have_ids_of_their_own_and_tell_their_errors() {
    let again = || Call { id: Some("call_1"), ..call("run_python", "{\"code\": \"1 / 0\"}") };
    let question =
        StubModel::shared().script("own-ids", &[again().into(), again().into(), text("Hm.")]);
    let events =
        sse::all(stream(&caller(), "/v1/interpret", &json!({"message": question})).await).await;
    let told = |name: &str| {
        let named = events.iter().filter(|event| event.name == name);
        named.map(|event| event.data["id"].clone()).collect::<Vec<_>>()
    };
    let run = &events.last().unwrap().data;
    let results = run["code_exec_results"].as_array().unwrap();
    let ids: Vec<Value> = results.iter().map(|result| result["id"].clone()).collect();
    assert_eq!(ids, ["call_1", "call_1_1"]);
    assert_eq!((told("tool.started"), told("tool.completed")), (ids.clone(), ids));
    let completed = events.iter().find(|event| event.name == "tool.completed").unwrap();
    assert_eq!(completed.data["error"], results[0]["execution"]["error"]);
    assert!(completed.data["error"].as_str().unwrap().contains("ZeroDivisionError"));
}

#[tokio::test]
async fn a_model_that_fails_ends_a_stream_as_a_run_with_an_error() {
    let question =
        StubModel::shared().script("fails-told", &[run(&["1"]), Reply::Fault(401, json!({}))]);
    let events =
        sse::all(stream(&caller(), "/v1/interpret", &json!({"message": question})).await).await;
    let run = &events.last().unwrap().data;
    assert_eq!(
        (
            &run["status"],
            &run["failure"]["kind"],
            run["code_exec_results"].as_array().unwrap().len()
        ),
        (&json!("error"), &json!("model_unavailable"), 1)
    );
}

#[tokio::test]
async fn work_asked_for_later_goes_on_and_is_found_again() {
    let caller = caller();
    let session = caller.session().await;
    let run = later(
        &caller,
        &session.path("/exec"),
        &json!({"code": "import time; print('on'); time.sleep(0.3); 'done'"}),
    )
    .await;
    assert_eq!(
        (&run["status"], &run["kind"], &run["session_id"]),
        (&json!("queued"), &json!("exec"), &json!(session.id))
    );
    let events = sse::all(events_of(&caller, &run, None).await).await;
    assert_eq!(names(&events), ["run.started", "stdout", "output", "run.completed"]);
    let (_, ended) = caller.get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).await;
    assert_eq!(
        (&ended["status"], &ended["text"], &ended["created_at"]),
        (&json!("success"), &json!("on\n'done'"), &run["created_at"])
    );
    assert_eq!(sse::all(events_of(&caller, &run, None).await).await, events);

    let question = StubModel::shared().script("later", &[run_code(), text("fine")]);
    let run =
        later(&caller, "/v1/interpret", &json!({"message": question, "metadata": {"a": "b"}}))
            .await;
    assert_eq!((&run["model"], &run["metadata"]), (&json!("stub"), &json!({"a": "b"})));
    let events = sse::all(events_of(&caller, &run, None).await).await;
    let ended = &events.last().unwrap().data;
    assert_eq!(
        (&ended["id"], &ended["session_id"], &ended["text"]),
        (&run["id"], &run["session_id"], &json!("fine"))
    );
}

fn run_code() -> Reply {
    run(&["1 + 1"])
}

#[tokio::test]
async fn later_work_that_cannot_begin_ends_as_a_run_with_an_error() {
    let caller = caller();
    let run =
        later(&caller, "/v1/execute", &json!({"code": "1", "limits": {"processes": 1}})).await;
    let events = sse::all(events_of(&caller, &run, None).await).await;
    assert!(events.iter().all(|event| event.name == "run.completed"), "{events:?}");
    let (_, ended) = caller.get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).await;
    assert_eq!(
        (&ended["status"], &ended["failure"]["retry_safe"]),
        (&json!("error"), &json!(true)),
        "{ended}"
    );
    assert!(ended["error"].as_str().unwrap().contains("processes must be between"), "{ended}");
}

#[tokio::test]
async fn a_run_can_be_cancelled_while_it_goes_on_and_while_it_waits() {
    let caller = caller();
    let session = caller.session().await;
    let running = later(
        &caller,
        &session.path("/exec"),
        &json!({"code": "x = 5\nopen('begun', 'w').close()\nimport time; time.sleep(60)"}),
    )
    .await;
    let waiting = later(&caller, &session.path("/exec"), &json!({"code": "x = 6"})).await;
    while session.download("begun").await.status() != StatusCode::OK {
        tokio::task::yield_now().await;
    }
    for run in [&waiting, &running] {
        let following = events_of(&caller, run, None).await; // from before its end
        let path = format!("/v1/runs/{}/cancel", run["id"].as_str().unwrap());
        let (status, told) = answer(caller.request(Method::POST, &path)).await;
        assert_eq!((status, &told["id"]), (StatusCode::ACCEPTED, &run["id"]), "{told}");
        let events = sse::all(following).await;
        assert_eq!(events.last().unwrap().name, "run.completed", "{events:?}");
        let (_, ended) = caller.get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).await;
        assert_eq!(ended["status"], "cancelled", "{ended}");
        let again = answer(caller.request(Method::POST, &path)).await;
        assert_eq!(problem(&again), (409, "run_ended".into()));
    }
    assert_eq!(session.text("x").await, "5", "state kept, and the waiting cell never ran");
    let unknown = answer(
        caller.request(Method::POST, "/v1/runs/01a227e1-01f7-72d4-a286-4b13590b4268/cancel"),
    )
    .await;
    assert_eq!(problem(&unknown), (404, "run_not_found".into()));
}

#[tokio::test]
async fn a_question_can_be_cancelled_while_the_model_thinks() {
    let question = StubModel::shared().script("cancelled", &[run(&["x = 1"]), Reply::Never]);
    let caller = caller();
    let run = later(&caller, "/v1/interpret", &json!({"message": question})).await;
    let seen =
        sse::until(events_of(&caller, &run, None).await, |event| event.name == "tool.completed")
            .await;
    assert_eq!(seen.last().unwrap().data["status"], "success");
    answer(
        caller.request(Method::POST, &format!("/v1/runs/{}/cancel", run["id"].as_str().unwrap())),
    )
    .await;
    let events = sse::all(events_of(&caller, &run, Some(seen.last().unwrap().id)).await).await;
    let ended = &events.last().unwrap().data;
    assert_eq!(
        (&ended["status"], ended["code_exec_results"].as_array().unwrap().len()),
        (&json!("cancelled"), 1)
    );
}

#[tokio::test]
async fn a_stream_that_is_left_cancels_its_work() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("x = 1").await;
    let response = stream(
        &caller,
        &session.path("/exec"),
        &json!({"code": "x = 2\nprint('on', flush=True)\nimport time; time.sleep(60)"}),
    )
    .await;
    let seen = sse::until(response, |event| event.name == "stdout").await;
    let started = std::time::Instant::now();
    assert_eq!(session.text("x").await, "2");
    assert!(started.elapsed().as_secs() < 10);
    let (_, run) = caller.get(&format!("/v1/runs/{}", seen[0].data["id"].as_str().unwrap())).await;
    assert_eq!(run["status"], "cancelled");
}

#[tokio::test]
async fn a_slow_reader_gets_a_gap_and_slows_nobody() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import sys\nfor i in range(6000): sys.stdout.write('x' * 10_000)\nsys.stdout.flush(); 'end'";
    let started = std::time::Instant::now();
    let run = later(&caller, &session.path("/exec"), &json!({"code": code})).await;
    while caller.get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).await.1["status"]
        != "success"
    {
        tokio::task::yield_now().await;
    }
    assert!(started.elapsed().as_secs() < 25);
    let events = sse::all(events_of(&caller, &run, Some(1)).await).await;
    assert_eq!(
        (events[0].name.as_str(), events.last().unwrap().data["stdout_bytes"].as_u64()),
        ("gap", Some(60_000_000)),
        "{:?}",
        events[0]
    );
    assert_eq!(events[1].id, events[0].id + 1);
}

#[tokio::test]
async fn events_of_a_plain_run_are_told_again_from_what_it_put_out() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session.exec("print('p'); 1").await;
    let run = json!({"id": execution["run_id"]});
    let events = sse::all(events_of(&caller, &run, None).await).await;
    assert_eq!(names(&events), ["run.started", "stdout", "output", "run.completed"]);
    assert_eq!(events.last().unwrap().data, execution);
    let bad = caller
        .request(Method::GET, &format!("/v1/runs/{}/events", execution["run_id"].as_str().unwrap()))
        .header("last-event-id", "x");
    assert_eq!(problem(&answer(bad).await), (400, "malformed_header".into()));
}

#[tokio::test]
async fn as_many_streams_are_read_as_may() {
    let server = Server::start(&[("MAX_STREAMS", "1")]);
    let caller = server.caller();
    let session = caller.session().await;
    let first =
        stream(&caller, &session.path("/exec"), &json!({"code": "import time; time.sleep(60)"}))
            .await;
    let second = caller
        .request(Method::POST, "/v1/execute")
        .header("accept", "text/event-stream")
        .json(&json!({"code": "1"}));
    assert_eq!(problem(&answer(second).await), (503, "too_many_streams".into()));
    drop(first);
}
