//! Rows that were written though the store did not say so: nothing stays open for them.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::postgres::{self, Database};
use crate::support::server::{Server, open_folder};
use crate::support::{Caller, answer, must_come};

const RUN: &str = "01a22ce8-0000-7000-8000-000000000001";
const SESSION: &str = "01a22ce8-0000-7000-8000-000000000002";

async fn keyed(caller: &Caller) -> (StatusCode, Value) {
    let request = caller.request(Method::POST, "/v1/execute").header("idempotency-key", "lost");
    answer(request.json(&json!({"code": "print('once')"}))).await
}

/// What a begin leaves whose commit came through and whose answer did not.
#[tokio::test]
async fn what_nobody_works_on_is_ended_and_its_key_is_free() {
    let Some(database) = Database::new() else { return };
    let server = Server::start(&[("DATABASE_URL", &database.url())]);
    let caller = server.caller();
    let (_, first) = keyed(&caller).await;
    let model = first["run_id"].as_str().unwrap();
    let open = format!(
        "insert into run (run_id, tenant, owner, epoch, kind, status, session_id, provider, created_at, summary)
             select '{RUN}', tenant, owner, epoch, kind, 'running', session_id, provider, created_at,
                 replace(replace(summary, '{model}', '{RUN}'), '\"status\":\"success\"', '\"status\":\"running\"')
             from run where run_id = '{model}';
         insert into session (session_id, tenant, owner, epoch, state, body)
             select '{SESSION}', tenant, owner, epoch, 'starting', replace(body, session_id::text, '{SESSION}')
             from session limit 1;
         update session set body = body::jsonb - 'ended_at' - 'end_reason' || '{{\"state\": \"starting\"}}'
             where session_id = '{SESSION}';
         update idempotency set run_id = '{RUN}'"
    );
    postgres::execute(&database.url(), &open);
    let (status, body) = keyed(&caller).await;
    assert_eq!((status, &body["code"]), (StatusCode::CONFLICT, &json!("idempotency_in_progress")));
    let again = must_come(async {
        loop {
            let (status, body) = keyed(&caller).await;
            if status != StatusCode::CONFLICT {
                return (status, body);
            }
        }
    })
    .await;
    assert_eq!((again.0, &again.1["stdout"]), (StatusCode::OK, &json!("once\n")));
    assert_ne!(again.1["run_id"], first["run_id"]);
    let (_, stray) = caller.get(&format!("/v1/runs/{RUN}")).await;
    assert_eq!(
        (&stray["status"], &stray["failure"]["retry_safe"]),
        (&json!("error"), &json!(true))
    );
    let stray = must_come(async {
        loop {
            let (_, stray) = caller.get(&format!("/v1/sessions/{SESSION}")).await;
            if stray["state"] != "starting" {
                return stray;
            }
        }
    })
    .await;
    assert_eq!((&stray["state"], &stray["end_reason"]), (&json!("failed"), &json!("failed")));
}

/// One that the database refuses each time, as nothing of ours is known to be.
#[tokio::test]
async fn an_end_that_is_never_taken_holds_nobody_up() {
    let Some(database) = Database::new() else { return };
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let start = || Server::start_in(&data_dir, &[("DATABASE_URL", &database.url())]);
    let first = start();
    let (_, run) = first.caller().post("/v1/execute", json!({"code": "print('once')"})).await;
    let id = run["run_id"].as_str().unwrap();
    let (_, run) = first.caller().get(&format!("/v1/runs/{id}")).await;
    first.signal(libc::SIGTERM);
    assert!(first.wait().success());
    let end = json!({
        "tenant": "default", "epoch": 1, "run": run, "files": [], "release_key": false,
        "conversation": "\0",
    });
    let waiting = data_dir.join("journal").join(format!("{id}.json"));
    std::fs::write(&waiting, end.to_string()).unwrap();
    let second = start();
    assert_eq!(second.caller().session().await.text("1").await, "1");
    assert!(waiting.exists(), "it is left for people to look at");
}
