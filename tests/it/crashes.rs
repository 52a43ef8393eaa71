//! The process is ended at named points; after a restart nothing is lost, run twice or left running.

use std::path::Path;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};

use crate::support::server::{Server, open_folder};
use crate::support::{Caller, Session, must_come, problem, sse};

/// A cell that ends when there is a file `go`.
const UNTIL_GO: &str = "open('begun', 'w').close()\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('kept')";

/// As another process would, so that writes fail until it lets go.
async fn lock(data_dir: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(data_dir.join("interpreterd.db"));
    let mut other = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("begin immediate").execute(&mut other).await.unwrap();
    other
}

/// Once the cell [`UNTIL_GO`] has begun, locks the database and lets the cell end.
async fn hold_the_database(session: &Session<'_>, data_dir: &Path) -> SqliteConnection {
    while session.download("begun").await.status() != StatusCode::OK {
        tokio::task::yield_now().await;
    }
    let other = lock(data_dir).await;
    session.put("go", "").await;
    other
}

/// Sends a keyed request to a service that ends before it answers.
async fn into_the_crash(caller: &Caller, path: &str, body: &Value, later: bool) {
    let mut request =
        caller.request(Method::POST, path).header("idempotency-key", "the-key").json(body);
    if later {
        request = request.header("prefer", "respond-async");
    }
    assert!(
        request.timeout(Duration::from_secs(20)).send().await.is_err(),
        "the service must have crashed"
    );
}

async fn again(caller: &Caller, path: &str, body: &Value) -> (StatusCode, Value) {
    let request = caller.request(Method::POST, path).header("idempotency-key", "the-key");
    crate::support::answer(request.json(body)).await
}

async fn crash(point: &str, path: &str, body: &Value, later: bool) -> (tempfile::TempDir, Server) {
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let server = Server::start_with(&data_dir, &[], &[("INTERPRETERD_TEST_CRASH_AT", point)]);
    into_the_crash(&server.caller(), path, body, later).await;
    assert!(!server.wait().success());
    let server = Server::start_in(&data_dir, &[]);
    (folder, server)
}

async fn runs(caller: &Caller) -> Vec<Value> {
    caller.get("/v1/runs").await.1["data"].as_array().unwrap().clone()
}

async fn sessions(caller: &Caller) -> Vec<(Value, Value)> {
    let (_, list) = caller.get("/v1/sessions").await;
    list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|session| (session["state"].clone(), session["end_reason"].clone()))
        .collect()
}

fn lost() -> (Value, Value) {
    (json!("ended"), json!("lost"))
}

#[tokio::test]
async fn a_session_whose_sandbox_was_not_made_or_not_told_is_lost() {
    for point in ["session.inserted", "session.made"] {
        let (_folder, server) = crash(point, "/v1/sessions", &json!({}), false).await;
        let caller = server.caller();
        assert_eq!(sessions(&caller).await, [lost()], "{point}");
        let (status, session) = again(&caller, "/v1/sessions", &json!({})).await;
        assert_eq!(
            (status, &session["state"]),
            (StatusCode::CREATED, &json!("ended")),
            "the same request is not done again"
        );
        assert_eq!(sessions(&caller).await.len(), 1);
    }
}

#[tokio::test]
async fn a_run_that_was_handed_over_or_about_to_be_is_unknown_and_never_run_again() {
    let body = json!({"code": "open('made', 'w').write('x'); 1"});
    for point in ["run.begun", "files.kept", "cell.done"] {
        let (_folder, server) = crash(point, "/v1/execute", &body, false).await;
        let caller = server.caller();
        let found = runs(&caller).await;
        assert_eq!((found.len(), &found[0]["status"]), (1, &json!("unknown")), "{point}");
        let (status, execution) = again(&caller, "/v1/execute", &body).await;
        assert_eq!(
            (status.as_u16(), &execution["status"], &execution["run_id"]),
            (200, &json!("unknown"), &found[0]["id"]),
            "{point}"
        );
        assert_eq!(execution["failure"]["retry_safe"], false);
        assert_eq!(
            (runs(&caller).await.len(), sessions(&caller).await),
            (1, vec![lost()]),
            "{point}"
        );
        // files that no row speaks of are swept meanwhile
        must_come(async {
            while walk(&server.data_dir.join("blobs")) > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

fn walk(folder: &std::path::Path) -> usize {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| if path.is_dir() { walk(&path) } else { 1 })
        .sum()
}

#[tokio::test]
async fn a_run_whose_end_was_written_is_answered_from_the_store() {
    let body = json!({"code": "open('made', 'w').write('x'); print('once')"});
    let (_folder, server) = crash("run.finished", "/v1/execute", &body, false).await;
    let caller = server.caller();
    let (status, execution) = again(&caller, "/v1/execute", &body).await;
    assert_eq!(
        (status.as_u16(), &execution["status"], &execution["stdout"]),
        (200, &json!("success"), &json!("once\n")),
        "{execution}"
    );
    let url = execution["output_files"][0]["url"].as_str().unwrap();
    assert_eq!(
        crate::support::send(caller.request(Method::GET, url)).await.text().await.unwrap(),
        "x"
    );
    assert_eq!(runs(&caller).await.len(), 1);
}

#[tokio::test]
async fn a_run_that_waited_is_an_error_that_is_safe_to_retry_and_never_started() {
    let body = json!({"code": "1"});
    let (_folder, server) = crash("run.queued", "/v1/execute", &body, true).await;
    let found = runs(&server.caller()).await;
    assert_eq!(
        (found.len(), &found[0]["status"], &found[0]["failure"]),
        (
            1,
            &json!("error"),
            &json!({"kind": "sandbox_lost", "retry_safe": true, "message": "the service ended before the run began"})
        )
    );
}

#[tokio::test]
async fn a_result_that_the_store_does_not_take_is_answered_and_written_later() {
    let folder = open_folder();
    let server = Server::start_in(&folder.path().join("data"), &[]);
    let caller = server.caller();
    let session = caller.session().await;
    let running = session.exec(UNTIL_GO);
    let locking = hold_the_database(&session, &server.data_dir);
    let (execution, mut other) = tokio::join!(running, locking);
    assert_eq!(execution["stdout"], "kept\n", "the answer is given all the same");
    let path = format!("/v1/runs/{}", execution["run_id"].as_str().unwrap());
    assert_eq!(caller.get(&path).await.1["status"], "running");
    assert_eq!(std::fs::read_dir(server.data_dir.join("journal")).unwrap().count(), 1);
    sqlx::query("rollback").execute(&mut other).await.unwrap();
    let run = loop {
        let (_, run) = caller.get(&path).await;
        if run["status"] != "running" {
            break run;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(
        (&run["status"], &run["code_exec_results"][0]["execution"]),
        (&json!("success"), &execution)
    );
}

#[tokio::test]
async fn a_sessions_end_that_the_store_does_not_take_is_known_and_written_later() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    let mut other = lock(&server.data_dir).await;
    assert!(session.delete().await.is_server_error());
    let (_, told) = caller.get(&format!("/v1/sessions/{}", session.id)).await;
    assert_eq!((&told["state"], &told["end_reason"]), (&json!("ended"), &json!("deleted")));
    sqlx::query("rollback").execute(&mut other).await.unwrap();
    let written = async {
        let ended = "select count(*) from session where state = 'ended'";
        while sqlx::query_scalar::<_, i64>(ended).fetch_one(&mut other).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), written).await.expect("its end is written");
}

#[tokio::test]
async fn a_journal_that_was_left_is_written_before_anything_is_called_unknown() {
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let server = Server::start_in(&data_dir, &[]);
    let caller = server.caller();
    let session = caller.session().await;
    let running = session.exec(UNTIL_GO);
    let locking = hold_the_database(&session, &data_dir);
    let (execution, mut other) = tokio::join!(running, locking);
    server.signal(libc::SIGKILL);
    server.wait();
    sqlx::query("rollback").execute(&mut other).await.unwrap();
    let again = Server::start_in(&data_dir, &[]);
    let (_, run) =
        again.caller().get(&format!("/v1/runs/{}", execution["run_id"].as_str().unwrap())).await;
    assert_eq!((&run["status"], &run["text"]), (&json!("success"), &json!("kept\n")));
}

#[tokio::test]
async fn what_is_over_is_forgotten_after_its_time_with_its_files() {
    let server = Server::start(&[("RETENTION_SECONDS", "1")]);
    let caller = server.caller();
    let living = caller.session().await;
    let (_, execution) =
        caller.post("/v1/execute", json!({"code": "open('a', 'w').write('x')"})).await;
    let run = format!("/v1/runs/{}", execution["run_id"].as_str().unwrap());
    let ended = format!("/v1/sessions/{}", execution["session_id"].as_str().unwrap());
    assert_eq!(caller.get(&run).await.0, StatusCode::OK);
    while caller.get(&run).await.0 == StatusCode::OK || caller.get(&ended).await.0 == StatusCode::OK
    {
        tokio::task::yield_now().await;
    }
    assert_eq!(problem(&caller.get(&run).await), (404, "run_not_found".into()));
    while walk(&server.data_dir.join("blobs")) > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(living.text("1").await, "1", "a living session is not over");
}

#[tokio::test]
async fn a_stream_that_is_taken_up_after_a_crash_comes_to_its_end() {
    let (_folder, server) = crash("run.begun", "/v1/execute", &json!({"code": "1"}), false).await;
    let caller = server.caller();
    let id = runs(&caller).await[0]["id"].as_str().unwrap().to_owned();
    for last in ["0", "1", "2", "500", "18446744073709551615"] {
        let request = caller
            .request(Method::GET, &format!("/v1/runs/{id}/events"))
            .header("last-event-id", last);
        let events = sse::all(crate::support::send(request).await).await;
        let end = events.last().unwrap_or_else(|| panic!("no event after {last}"));
        assert_eq!((end.name.as_str(), &end.data["status"]), ("run.completed", &json!("unknown")));
        assert!(end.id > last.parse().unwrap() || end.id == u64::MAX, "{} after {last}", end.id);
    }
}

#[tokio::test]
async fn a_journal_that_cannot_be_read_costs_no_file() {
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let server = Server::start_in(&data_dir, &[]);
    server.caller().session().await.delete().await;
    server.signal(libc::SIGTERM);
    server.wait();
    std::fs::write(data_dir.join("journal/x.json"), "half").unwrap();
    let blob = data_dir.join("blobs/zz/its-file");
    std::fs::create_dir_all(blob.parent().unwrap()).unwrap();
    std::fs::write(&blob, "what the entry speaks of").unwrap();
    let again = Server::start_in(&data_dir, &[]);
    assert!(blob.exists() && data_dir.join("journal/x.json").exists());
    assert!(again.log().contains("an end in the journal cannot be read"), "{}", again.log());
}
