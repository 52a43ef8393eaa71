//! Conversations: `previous_run_id` goes on in what was said, `session_id` in the sandbox.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::model::{Reply, Said, StubModel, run, said_run, text};
use crate::support::server::{Server, caller, open_folder};
use crate::support::sse::{self, SseEvent};
use crate::support::{Caller, must_come, problem, send};

async fn ask(caller: &Caller, path: &str, body: Value) -> Value {
    let (status, run) = caller.post(path, body).await;
    assert_eq!(status, 200, "{run}");
    run
}

/// The messages of the last request that a script has had.
fn last_messages(script: &str) -> Vec<Value> {
    let last = StubModel::shared().requests(script).pop().unwrap();
    last["messages"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_question_goes_on_in_conversation_and_sandbox_together() {
    for wire in ["stub", "claude"] {
        let script = format!("together-{wire}");
        let replies = [run(&["x = 41"]), text("It is set."), run(&["x + 1"]), text("42, then.")];
        let message = StubModel::shared().script(&script, &replies);
        let caller = caller();
        let session = caller.session().await;
        let path = format!("/v1/interpret?session_id={}", session.id);
        let first = ask(&caller, &path, json!({"message": message, "model": wire})).await;
        let more =
            json!({"message": "And one more?", "model": wire, "previous_run_id": first["id"]});
        let second = ask(&caller, &path, more).await;
        assert_eq!(
            (&second["text"], &second["previous_run_id"]),
            (&json!("42, then."), &first["id"])
        );
        assert_eq!(second["code_exec_results"][0]["output"], json!(["42"]));
        assert_eq!(second["message"], "And one more?");
        let told = json!(last_messages(&script)).to_string();
        assert!(
            told.contains("It is set.") && !told.contains("The sandbox is a new one"),
            "{told}"
        );
        let (_, listed) = caller.get(&format!("/v1/runs?session_id={}&limit=1", session.id)).await;
        assert_eq!(listed["data"][0]["previous_run_id"], first["id"]);
        let (_, stored) = caller.get(&format!("/v1/runs/{}", second["id"].as_str().unwrap())).await;
        assert_eq!(stored, second);
    }
}

#[tokio::test]
async fn a_conversation_goes_on_alone_and_the_model_is_told_that_its_sandbox_is_gone() {
    let message = StubModel::shared()
        .script("alone", &[run(&["x = 41"]), text("Set."), run(&["x"]), text("Gone.")]);
    let caller = caller();
    let first = ask(&caller, "/v1/interpret", json!({"message": message})).await;
    let more = json!({"message": "x?", "previous_run_id": first["id"]});
    let second = ask(&caller, "/v1/interpret", more).await;
    assert_eq!(second["code_exec_results"][0]["execution"]["error_detail"]["name"], "NameError");
    assert_ne!(second["session_id"], first["session_id"]);
    let told = json!(last_messages("alone")).to_string();
    assert!(told.contains("x = 41") && told.contains("The sandbox is a new one"), "{told}");
}

#[tokio::test]
async fn a_session_goes_on_alone_without_what_was_said() {
    let caller = caller();
    let session = caller.session().await;
    let path = format!("/v1/interpret?session_id={}", session.id);
    let first = StubModel::shared().script("session-1", &[run(&["x = 41"]), text("Secretly set.")]);
    ask(&caller, &path, json!({"message": first})).await;
    let second = StubModel::shared().script("session-2", &[run(&["x"]), text("41")]);
    let run = ask(&caller, &path, json!({"message": second})).await;
    assert_eq!(run["code_exec_results"][0]["output"], json!(["41"]));
    assert!(!json!(last_messages("session-2")).to_string().contains("Secretly"));
}

#[tokio::test]
async fn a_conversation_goes_on_with_another_model_over_another_wire_and_back() {
    let thinking = Said {
        thinking: Some("secret thoughts".to_owned()),
        text: "Let me.".to_owned(),
        ..said_run(&["1", "2"])
    };
    let replies = [thinking.into(), text("One."), run(&["3"]), text("Two."), text("Three.")];
    let message = StubModel::shared().script("mixed", &replies);
    let caller = caller();
    let mut previous = Value::Null;
    for (model, message) in [("claude", message.as_str()), ("stub", "more"), ("claude", "and more")]
    {
        let body = json!({"message": message, "model": model, "previous_run_id": previous});
        let run = ask(&caller, "/v1/interpret", body).await;
        assert_eq!(run["status"], "success", "{run}");
        previous = run["id"].clone();
    }
    let requests = StubModel::shared().requests("mixed");
    let thought = |request: &Value| request["messages"].to_string().contains("secret thoughts");
    let told: Vec<bool> = requests.iter().map(thought).collect();
    assert_eq!(told, [false, true, false, false, true], "thoughts go to the model that had them");
}

#[tokio::test]
async fn what_cannot_go_on_is_a_problem() {
    let caller = caller();
    let unknown =
        json!({"message": "x", "previous_run_id": "01a229d1-bd30-7b3c-a2b6-000000000000"});
    assert_eq!(
        problem(&caller.post("/v1/interpret", unknown).await),
        (404, "run_not_found".into())
    );
    let session = caller.session().await;
    let exec = session.exec("1").await;
    let no_question = json!({"message": "x", "previous_run_id": exec["run_id"]});
    let answer = caller.post("/v1/interpret", no_question.clone()).await;
    assert_eq!(problem(&answer), (422, "no_conversation".into()));
    assert_eq!(answer.1["errors"][0]["pointer"], "/previous_run_id", "{}", answer.1);
    let later = caller.request(Method::POST, "/v1/interpret").header("prefer", "respond-async");
    let answer = crate::support::answer(later.json(&no_question)).await;
    assert_eq!(problem(&answer), (422, "no_conversation".into()), "told before it is queued");
    let message = StubModel::shared().script("still-running", &[Reply::Never]);
    let later = caller.request(Method::POST, "/v1/interpret").header("prefer", "respond-async");
    let (_, running) = crate::support::answer(later.json(&json!({"message": message}))).await;
    let body = json!({"message": "x", "previous_run_id": running["id"]});
    assert_eq!(problem(&caller.post("/v1/interpret", body).await), (409, "run_not_ended".into()));
    let cancel = format!("/v1/runs/{}/cancel", running["id"].as_str().unwrap());
    caller.post(&cancel, json!({})).await;
}

#[tokio::test]
async fn a_run_that_ended_badly_goes_on_with_all_its_calls_answered() {
    for wire in ["stub", "claude"] {
        // two calls, cancelled in the first; the stub refuses a call without its result
        let script = format!("goes-on-{wire}");
        let replies = [run(&["import time; time.sleep(60)", "2"]), text("On we go.")];
        let message = StubModel::shared().script(&script, &replies);
        let caller = caller();
        let request =
            caller.request(Method::POST, "/v1/interpret").header("prefer", "respond-async");
        let body = json!({"message": message, "model": wire});
        let (_, first) = crate::support::answer(request.json(&body)).await;
        let id = first["id"].as_str().unwrap();
        let events = caller.request(Method::GET, &format!("/v1/runs/{id}/events"));
        let started = |event: &SseEvent| event.name == "tool.started";
        must_come(sse::until(send(events).await, started)).await;
        caller.post(&format!("/v1/runs/{id}/cancel"), json!({})).await;
        let events = caller.request(Method::GET, &format!("/v1/runs/{id}/events"));
        let events = must_come(sse::all(send(events).await)).await;
        assert_eq!(events.last().unwrap().data["status"], "cancelled");
        let more = json!({"message": "and?", "model": wire, "previous_run_id": first["id"]});
        let second = ask(&caller, "/v1/interpret", more).await;
        assert_eq!(
            (&second["status"], &second["text"]),
            (&json!("success"), &json!("On we go.")),
            "{second}"
        );
    }
}

#[tokio::test]
async fn a_run_that_a_crash_ended_goes_on_from_its_question() {
    let model = StubModel::start();
    let folder = open_folder();
    let data = folder.path().join("data");
    let settings = [
        ("MODEL", "stub"),
        ("MODEL_BASE_URL", &model.base_url),
        ("MODEL_API_KEY", crate::support::model::KEY),
    ];
    let message = model.script("crash", &[run(&["1"]), text("Again, then.")]);
    let crashing = [&settings[..], &[]].concat();
    let server =
        Server::start_with(&data, &crashing, &[("INTERPRETERD_TEST_CRASH_AT", "cell.done")]);
    let request = server.caller().request(Method::POST, "/v1/interpret");
    assert!(request.json(&json!({"message": message})).send().await.is_err());
    server.wait();
    let server = Server::start_in(&data, &settings);
    let caller = server.caller();
    let (_, runs) = caller.get("/v1/runs?kind=interpret").await;
    assert_eq!(runs["data"][0]["status"], "unknown", "{runs}");
    let body = json!({"message": "and?", "previous_run_id": runs["data"][0]["id"]});
    let second = ask(&caller, "/v1/interpret", body).await;
    assert_eq!(second["text"], "Again, then.", "{second}");
    let told = model.requests("crash").pop().unwrap()["messages"].to_string();
    assert!(told.contains("what came of it is unknown"), "{told}");
}

#[tokio::test]
async fn the_same_key_with_another_previous_run_is_another_request() {
    let caller = caller();
    let message = StubModel::shared().script("keyed-previous", &[text("a")]);
    let first = ask(&caller, "/v1/interpret", json!({"message": message})).await;
    let keyed = |body: Value| {
        let request = caller.request(Method::POST, "/v1/interpret");
        crate::support::answer(request.header("idempotency-key", "previous-1").json(&body))
    };
    let body = json!({"message": message, "previous_run_id": first["id"]});
    let (status, once) = keyed(body.clone()).await;
    assert_eq!((status.as_u16(), keyed(body).await.1), (200, once));
    let other = keyed(json!({"message": message})).await;
    assert_eq!(problem(&other), (422, "idempotency_key_reused".into()));
}

#[tokio::test]
async fn a_question_after_one_that_got_no_answer_is_told_as_the_service_wants_it() {
    let refused = || Reply::Fault(401, json!({}));
    let draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()";
    for wire in ["stub", "claude", "seeing"] {
        for (name, first) in
            [("at-once", vec![refused()]), ("drawn", vec![run(&[draw]), refused()])]
        {
            let script = format!("no-answer-{wire}-{name}");
            let message =
                StubModel::shared().script(&script, &[first, vec![text("Now.")]].concat());
            let caller = caller();
            let failed =
                caller.post("/v1/interpret", json!({"message": message, "model": wire})).await;
            assert_eq!(problem(&failed), (502, "model_unavailable".into()));
            let more =
                json!({"message": "and?", "model": wire, "previous_run_id": failed.1["run_id"]});
            let second = ask(&caller, "/v1/interpret", more).await;
            assert_eq!(
                (&second["status"], &second["text"]),
                (&json!("success"), &json!("Now.")),
                "{second}"
            );
        }
    }
}
