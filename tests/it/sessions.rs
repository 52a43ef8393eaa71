//! Sessions: create, read, list, end.

use reqwest::StatusCode;
use serde_json::json;

use crate::support::problem;
use crate::support::server::{Server, caller};

#[tokio::test]
async fn a_session_tells_what_it_is() {
    let caller = caller();
    let request = caller.request(reqwest::Method::POST, "/v1/sessions");
    let response = crate::support::send(request.json(&json!({"metadata": {"team": "a"}}))).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let session: serde_json::Value = response.json().await.unwrap();
    assert_eq!(location, format!("/v1/sessions/{}", session["id"].as_str().unwrap()));
    assert_eq!(session["provider"], "local");
    assert_eq!(session["state"], "ready");
    assert_eq!(session["isolation"]["level"], "namespaced");
    assert_ne!(session["isolation"]["uid"], 0);
    assert_eq!(session["files_dir"], "/files");
    assert_eq!(
        session["limits"],
        json!({"memory_bytes": 536_870_912, "disk_bytes": 268_435_456, "inodes": 65536,
            "file_bytes": 268_435_456, "processes": 128, "open_files": 1024, "cpu_percent": 100,
            "output_bytes": 1_048_576})
    );
    assert_eq!(session["metadata"], json!({"team": "a"}));
    assert_eq!(caller.get(&location).await, (StatusCode::OK, session));
}

#[tokio::test]
async fn deleting_ends_a_session_and_again_changes_nothing() {
    let caller = caller();
    let session = caller.session().await;
    assert_eq!(session.delete().await, StatusCode::NO_CONTENT);
    assert_eq!(session.delete().await, StatusCode::NO_CONTENT);
    let (status, ended) = caller.get(&session.path("")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!((&ended["state"], &ended["end_reason"]), (&json!("ended"), &json!("deleted")));
    let gone = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&gone), (410, "session_deleted".into()));
    let detail = gone.1["detail"].as_str().unwrap();
    assert!(detail.contains(&ended["ended_at"].as_str().unwrap()[..19]), "{detail}");
}

#[tokio::test]
async fn deleting_kills_a_busy_session_at_once() {
    let caller = caller();
    let session = caller.session().await;
    let marker = session.exec("import os; os.getpid()").await;
    assert_eq!(marker["status"], "success");
    let path = session.path("/exec");
    let running =
        caller.post(&path, json!({"code": "open('begun', 'w').close()\nwhile True: pass"}));
    let ending = async {
        while session.download("begun").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
        assert_eq!(caller.get(&session.path("")).await.1["state"], "busy");
        let started = std::time::Instant::now();
        assert_eq!(session.delete().await, StatusCode::NO_CONTENT);
        started.elapsed()
    };
    let ((status, execution), took) = tokio::join!(running, ending);
    assert_eq!(status, StatusCode::OK);
    assert_eq!((&execution["status"], &execution["exit_code"]), (&json!("error"), &json!(137)));
    assert_eq!((&execution["state_lost"], &execution["files_lost"]), (&json!(true), &json!(true)));
    assert!(took.as_secs() < 5, "{took:?}");
}

#[tokio::test]
async fn an_unknown_session_is_a_problem_on_every_route() {
    let caller = caller();
    let path = "/v1/sessions/01a227e1-01f7-72d4-a286-4b13590b4268";
    assert_eq!(problem(&caller.get(path).await), (404, "session_not_found".into()));
    assert_eq!(caller.delete(path).await, StatusCode::NOT_FOUND);
    let exec = caller.post(&format!("{path}/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&exec), (404, "session_not_found".into()));
    assert_eq!(
        problem(&caller.get(&format!("{path}/files/a")).await),
        (404, "session_not_found".into())
    );
}

#[tokio::test]
async fn a_session_ends_when_nobody_uses_it_and_when_its_lifetime_is_over() {
    let caller = caller();
    for (body, reason) in
        [(json!({"idle_seconds": 0.3}), "idle"), (json!({"lifetime_seconds": 0.3}), "expired")]
    {
        let session = caller.session_with(body).await;
        let ended = loop {
            let (_, session) = caller.get(&session.path("")).await;
            if session["state"] == "ended" {
                break session;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(ended["end_reason"], reason);
        let gone = caller.post(&session.path("/exec"), json!({"code": "1"})).await;
        assert_eq!(problem(&gone), (410, format!("session_{reason}")));
    }
}

#[tokio::test]
async fn limits_can_be_lowered_and_not_raised() {
    let caller = caller();
    let session = caller.session_with(json!({"limits": {"disk_bytes": 1_048_576}})).await;
    let full = session.exec("open('big', 'wb').write(bytes(2 << 20))").await;
    assert_eq!(full["error_detail"]["name"], "OSError", "{full}");
    let raised = caller.post("/v1/sessions", json!({"limits": {"memory_bytes": 1u64 << 40}})).await;
    assert_eq!(problem(&raised), (422, "limit_out_of_range".into()));
    assert_eq!(raised.1["errors"][0]["pointer"], "/limits/memory_bytes");
}

#[tokio::test]
async fn lists_come_in_pages() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(caller.session().await.id);
    }
    let mut listed = Vec::new();
    let mut path = "/v1/sessions?limit=2&order=asc".to_owned();
    loop {
        let (status, page) = caller.get(&path).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        let data = page["data"].as_array().unwrap();
        listed.extend(data.iter().map(|session| session["id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/sessions?limit=2&order=asc&after={cursor}");
    }
    assert_eq!(listed, made);
    let (_, newest) = caller.get("/v1/sessions?limit=1").await;
    assert_eq!(newest["data"][0]["id"], *made.last().unwrap());
    assert_eq!(newest["has_more"], true);
    assert_eq!(problem(&caller.get("/v1/sessions?limit=0").await), (422, "out_of_range".into()));
}

#[tokio::test]
async fn as_many_sessions_live_as_may() {
    let server = Server::start(&[("MAX_SESSIONS", "1")]);
    let caller = server.caller();
    let first = caller.session().await;
    let second = crate::support::send(
        caller.request(reqwest::Method::POST, "/v1/sessions").json(&json!({})),
    )
    .await;
    assert_eq!(second.headers()["retry-after"], "1");
    assert_eq!(second.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(first.delete().await, StatusCode::NO_CONTENT);
    caller.session().await;
}

#[tokio::test]
async fn a_session_is_extended_from_now_on_and_noted_anew() {
    let caller = caller();
    let session = caller.session_with(json!({"lifetime_seconds": 1, "metadata": {"a": "1"}})).await;
    let change = json!({"lifetime_seconds": 3600, "idle_seconds": 1800, "metadata": {"b": "2"}});
    let (status, changed) = caller.send(reqwest::Method::PATCH, &session.path(""), &change).await;
    assert_eq!((status, &changed["metadata"]), (StatusCode::OK, &json!({"b": "2"})), "{changed}");
    let time = |name: &str| {
        time::OffsetDateTime::parse(
            changed[name].as_str().unwrap(),
            &time::format_description::well_known::Rfc3339,
        )
        .unwrap()
    };
    let left = time("expires_at") - time("created_at");
    assert!((3600.0..3602.0).contains(&left.as_seconds_f64()), "{left}");
    let too_long = caller
        .send(reqwest::Method::PATCH, &session.path(""), &json!({"lifetime_seconds": 90_000}))
        .await;
    assert_eq!(problem(&too_long), (422, "out_of_range".into()));
    session.delete().await;
    let gone = caller.send(reqwest::Method::PATCH, &session.path(""), &json!({})).await;
    assert_eq!(problem(&gone), (410, "session_deleted".into()));
}

#[tokio::test]
async fn b46_a_running_cell_counts_as_use_and_the_end_is_exact_to_a_second() {
    let caller = caller();
    let session = caller.session_with(json!({"idle_seconds": 0.5})).await;
    let execution = session.exec("import time; time.sleep(1.5); print(1)").await;
    assert_eq!(execution["stdout"], "1\n");
    let used = time::OffsetDateTime::now_utc();
    let ended = loop {
        let (_, now) = caller.get(&session.path("")).await;
        if now["state"] == "ended" {
            break now;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(ended["end_reason"], "idle");
    let at = time::OffsetDateTime::parse(
        ended["ended_at"].as_str().unwrap(),
        &time::format_description::well_known::Rfc3339,
    )
    .unwrap();
    assert!((0.3..1.5).contains(&(at - used).as_seconds_f64()), "{}", at - used);
}
