//! Execute: one cell in a sandbox of its own.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::support::problem;
use crate::support::server::{Server, caller};

#[tokio::test]
async fn files_go_in_and_what_was_made_outlives_the_sandbox() {
    let caller = caller();
    let (status, execution) = caller.post("/v1/execute", json!({
        "code": "import os\ndata = open('in put.txt').read()\nos.mkdir('out'); open('out/ü.txt', 'w').write(data.upper())\nprint(os.environ['A'], input())",
        "files": [{"name": "in put.txt", "content_base64": STANDARD.encode("hello")}],
        "env": {"A": "b"},
        "stdin": "line",
        "include": ["content"],
    })).await;
    assert_eq!(status, 200, "{execution}");
    assert_eq!(
        (&execution["status"], &execution["stdout"]),
        (&json!("success"), &json!("b line\n"))
    );
    let files = execution["output_files"].as_array().unwrap();
    assert_eq!(files.len(), 1, "{execution}");
    let file = &files[0];
    let run_id = execution["run_id"].as_str().unwrap();
    assert_eq!(file["url"], format!("/v1/runs/{run_id}/files/out/%C3%BC.txt"));
    assert_eq!(file["sha256"], "3733cd977ff8eb18b987357e22ced99f46097f31ecb239e878ae63760e83e4d5");
    assert_eq!(STANDARD.decode(file["content_base64"].as_str().unwrap()).unwrap(), b"HELLO");
    let (_, session) =
        caller.get(&format!("/v1/sessions/{}", execution["session_id"].as_str().unwrap())).await;
    assert_eq!((&session["state"], &session["end_reason"]), (&json!("ended"), &json!("deleted")));
    let response =
        crate::support::send(caller.request(reqwest::Method::GET, file["url"].as_str().unwrap()))
            .await;
    assert_eq!(
        response.headers()["content-disposition"],
        "attachment; filename=\"_.txt\"; filename*=UTF-8''%C3%BC.txt"
    );
    assert_eq!(response.text().await.unwrap(), "HELLO");
}

#[tokio::test]
async fn one_call_leaves_nothing_to_the_next() {
    let caller = caller();
    caller.post("/v1/execute", json!({"code": "x = 1; open('f', 'w').write('x')"})).await;
    let (_, execution) = caller
        .post("/v1/execute", json!({"code": "import os; 'x' in globals(), os.listdir('.')"}))
        .await;
    assert_eq!(execution["text"], "(False, [])");
}

#[tokio::test]
async fn a_bad_request_names_the_part_that_is_bad() {
    let caller = caller();
    for (body, pointer) in [
        (json!({"code": "1", "files": [{"name": "../x", "content_base64": ""}]}), "/files/0/name"),
        (
            json!({"code": "1", "files": [{"name": "x", "content_base64": "%%"}]}),
            "/files/0/content_base64",
        ),
        (json!({"code": "1", "include": ["everything"]}), "/include/0"),
        (json!({"code": "1", "provider": "none"}), "/provider"),
        (json!({"code": 1}), "/code"),
    ] {
        let answer = caller.post("/v1/execute", body.clone()).await;
        assert_eq!(problem(&answer).0, 422, "{body}");
        assert_eq!(answer.1["errors"][0]["pointer"], pointer, "{body}: {}", answer.1);
    }
    let packages = caller.post("/v1/execute", json!({"code": "1", "packages": ["numpy<1"]})).await;
    assert_eq!(problem(&packages), (422, "packages_conflict".into()));
}

#[tokio::test]
async fn files_beyond_what_is_kept_of_a_run_are_left_out_and_said() {
    let server = crate::support::server::Server::start(&[("KEPT_BYTES", "3000000")]);
    let code = "for i in range(3): open(f'{i}.bin', 'wb').truncate(2_000_000)";
    let (_, execution) = server.caller().post("/v1/execute", json!({"code": code})).await;
    assert_eq!(execution["output_files"].as_array().unwrap().len(), 1, "{execution}");
    assert_eq!((&execution["status"], &execution["truncated"]), (&json!("success"), &json!(true)));
}

#[tokio::test]
async fn a_sandbox_for_one_call_lives_as_long_as_the_call_may_take() {
    let server = Server::start(&[("LIFETIME_SECONDS", "1")]);
    let body = json!({"code": "import time; time.sleep(1.7); print('done')"});
    let (_, execution) = server.caller().post("/v1/execute", body).await;
    assert_eq!((&execution["status"], &execution["stdout"]), (&json!("success"), &json!("done\n")));
}
