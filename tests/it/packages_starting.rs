//! Sessions that are starting: what waits for their packages, and what does not.

use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use reqwest::StatusCode;
use serde_json::json;

use crate::packages::{ready, refused, server, starting, usual};
use crate::support::server::{Server, open_folder};
use crate::support::{Session, answer, must_come, problem};

#[tokio::test]
async fn an_installation_ends_at_its_time_and_so_do_those_who_wait() {
    let index = usual();
    let server = server(&index, &[("INSTALL_SECONDS", "1.5")]);
    let caller = server.caller();
    index.close();
    let started = Instant::now();
    let (status, code, _) = refused(&caller, &["demo-a"]).await;
    assert_eq!((status, code.as_str()), (504, "packages_too_slow"));
    assert!(started.elapsed().as_secs() < 30);
    index.open();
}

#[tokio::test]
async fn a_service_that_is_told_to_stop_does_not_wait_for_an_installation() {
    let index = usual();
    let server = server(&index, &[("SHUTDOWN_GRACE_SECONDS", "0.5")]);
    let caller = server.caller();
    let session = starting(&index, &caller).await;
    server.signal(libc::SIGTERM);
    assert!(server.wait().success());
    drop(session);
    index.open();
}

#[tokio::test]
async fn a_service_that_is_killed_while_it_installs_leaves_no_half_of_it() {
    let index = usual();
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let settings = [("LOCAL_PACKAGE_INDEX", index.url.as_str())];
    let before = Server::start_in(&data_dir, &settings);
    index.close();
    let id = before.caller().session_with(json!({"packages": ["demo-a"]})).await.id;
    index.is_asked_for("demo-a").await;
    before.signal(libc::SIGKILL);
    before.wait();
    index.open();
    // as if it had ended while it wrote
    let half = data_dir.join("layers/partial-x");
    std::fs::create_dir(&half).unwrap();
    let owner = std::fs::metadata(&data_dir).unwrap();
    std::os::unix::fs::chown(&half, Some(owner.uid()), Some(owner.gid())).unwrap();
    let after = Server::start_in(&data_dir, &settings);
    let caller = after.caller();
    let (_, told) = caller.get(&format!("/v1/sessions/{id}")).await;
    assert_eq!((&told["state"], &told["end_reason"]), (&json!("ended"), &json!("lost")));
    must_come(async {
        while half.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let session = caller.session_with(json!({"packages": ["demo-a"]})).await;
    assert_eq!(session.text("import demo_a; demo_a.VERSION").await, "'2.0'");
    // and what is whole is there for the next one
    after.signal(libc::SIGTERM);
    after.wait();
    let next = Server::start_in(&data_dir, &settings);
    let (_, told) = next.caller().post("/v1/sessions", json!({"packages": ["demo-a"]})).await;
    assert_eq!(told["state"], "ready");
}

#[tokio::test]
async fn a_session_that_is_deleted_while_it_starts_is_over_and_the_set_is_installed_all_the_same() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    let session = starting(&index, &caller).await;
    let exec = session.path("/exec");
    let waiting = caller.post(&exec, json!({"code": "1"}));
    let (waited, deleted) = tokio::join!(waiting, session.delete());
    assert_eq!(deleted, 204);
    assert_eq!(problem(&waited), (410, "session_deleted".to_owned()));
    index.open();
    let next = caller.session_with(json!({"packages": ["demo-a"]})).await;
    assert_eq!(next.text("import demo_a; demo_a.VERSION").await, "'2.0'");
    assert_eq!(index.asked_for("demo-a"), 2);
}

#[tokio::test]
async fn a_key_gives_the_session_that_is_starting_under_it() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    index.close();
    let ask = async || {
        let request = caller.request(reqwest::Method::POST, "/v1/sessions");
        let request = request.header("idempotency-key", "k").json(&json!({"packages": ["demo-a"]}));
        answer(request).await
    };
    let (first, again) = (ask().await, ask().await);
    assert_eq!((first.0, again.0), (StatusCode::CREATED, StatusCode::CREATED));
    assert_eq!(first.1["id"], again.1["id"]);
    index.open();
}

#[tokio::test]
async fn a_one_shot_whose_caller_goes_away_does_not_wait_for_its_packages() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    index.close();
    let body = json!({"code": "1", "packages": ["demo-a"]});
    let request = caller.request(reqwest::Method::POST, "/v1/execute");
    let (_, run) = answer(request.header("prefer", "respond-async").json(&body)).await;
    index.is_asked_for("demo-a").await;
    let run = format!("/v1/runs/{}", run["id"].as_str().unwrap());
    assert_eq!(caller.post(&format!("{run}/cancel"), json!({})).await.0, 202);
    let told = must_come(async {
        loop {
            let (_, told) = caller.get(&run).await;
            if told["status"] != "queued" {
                return told;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(told["status"], "cancelled", "{told}");
    let (_, session) =
        caller.get(&format!("/v1/sessions/{}", told["session_id"].as_str().unwrap())).await;
    assert_eq!((&session["state"], &session["end_reason"]), (&json!("ended"), &json!("deleted")));
    index.open();
}

#[tokio::test]
async fn a_key_gives_the_session_that_failed_under_it_and_nothing_is_installed_again() {
    let index = usual();
    let server = server(&index, &[]);
    let caller = server.caller();
    let ask = async || {
        let request = caller.request(reqwest::Method::POST, "/v1/sessions");
        let request =
            request.header("idempotency-key", "k").json(&json!({"packages": ["demo-no"]}));
        answer(request).await.1
    };
    let first = ask().await;
    let session = Session { caller: &caller, id: first["id"].as_str().unwrap().to_owned() };
    assert_eq!(ready(&session).await["state"], "failed");
    let asked = index.asked_for("demo-no");
    let again = ask().await;
    assert_eq!((&again["id"], &again["state"]), (&first["id"], &json!("failed")));
    assert_eq!(index.asked_for("demo-no"), asked);
}
