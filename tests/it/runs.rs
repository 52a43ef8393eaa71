//! Runs: recorded, listed, read again.

use reqwest::StatusCode;
use serde_json::json;

use crate::support::problem;
use crate::support::server::{Server, caller};

#[tokio::test]
async fn an_exec_is_recorded_whole() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session.exec("print('x' * 100_000)").await;
    let (status, run) =
        caller.get(&format!("/v1/runs/{}", execution["run_id"].as_str().unwrap())).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        (&run["kind"], &run["status"], &run["session_id"]),
        (&json!("exec"), &json!("success"), &json!(session.id))
    );
    assert_eq!(run["code_exec_results"][0]["execution"], execution);
    assert!(run["finished_at"].as_str() >= run["started_at"].as_str());
}

#[tokio::test]
async fn runs_are_listed_by_what_is_asked_for() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let (one, two) = (caller.session().await, caller.session().await);
    one.exec("1").await;
    one.exec("1/0").await;
    two.exec("2").await;
    caller.post("/v1/execute", json!({"code": "3"})).await;
    let count = |query: &str| {
        let path = format!("/v1/runs?{query}");
        let caller = &caller;
        async move { caller.get(&path).await.1["data"].as_array().unwrap().len() }
    };
    assert_eq!(count("").await, 4);
    assert_eq!(count("kind=execute").await, 1);
    assert_eq!(count("status=error").await, 1);
    assert_eq!(count(&format!("session_id={}", one.id)).await, 2);
    assert_eq!(count("provider=local&kind=exec").await, 3);
    assert_eq!(count("since=2020-01-01T00:00:00Z").await, 4);
    assert_eq!(count("until=2020-01-01T00:00:00Z").await, 0);
    let (_, page) = caller.get("/v1/runs?limit=3").await;
    assert_eq!((page["data"].as_array().unwrap().len(), &page["has_more"]), (3, &json!(true)));
    assert!(page["data"][0].get("code_exec_results").is_none(), "a list gives summaries");
    let next = format!("after={}", page["next_cursor"].as_str().unwrap());
    assert_eq!(count(&next).await, 1);
    for query in ["kind=nothing", "since=yesterday", "limit=x", "colour=red", "after=1"] {
        assert_eq!(problem(&caller.get(&format!("/v1/runs?{query}")).await).0, 400, "{query}");
    }
}

#[tokio::test]
async fn an_unknown_run_or_file_is_a_problem() {
    let caller = caller();
    let unknown = "/v1/runs/01a227e1-01f7-72d4-a286-4b13590b4268";
    assert_eq!(problem(&caller.get(unknown).await), (404, "run_not_found".into()));
    assert_eq!(
        problem(&caller.get(&format!("{unknown}/files/x")).await),
        (404, "run_not_found".into())
    );
    assert_eq!(problem(&caller.get("/v1/runs/1").await), (400, "malformed_path".into()));
    let (_, execution) = caller.post("/v1/execute", json!({"code": "1"})).await;
    let path = format!("/v1/runs/{}/files/x", execution["run_id"].as_str().unwrap());
    assert_eq!(problem(&caller.get(&path).await), (404, "file_not_found".into()));
}

#[tokio::test]
async fn kept_files_of_an_exec_outlive_the_session() {
    let caller = caller();
    let session = caller.session().await;
    let execution = session
        .exec_with(json!({"code": "open('a.txt', 'w').write('kept')", "keep_files": true}))
        .await;
    let url = execution["output_files"][0]["url"].as_str().unwrap().to_owned();
    session.delete().await;
    let content = crate::support::send(caller.request(reqwest::Method::GET, &url))
        .await
        .text()
        .await
        .unwrap();
    assert_eq!(content, "kept");
}
