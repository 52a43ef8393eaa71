//! Several replicas share one Postgres: each serves its own, and takes over from those that are gone.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::double::Double;
use crate::support::postgres::{self, Database};
use crate::support::server::{Server, command, open_folder};
use crate::support::{Caller, Session, answer, must_come, problem};

/// Short, so that a test sees it end.
const LEASE: (&str, &str) = ("REPLICA_LEASE_SECONDS", "2");
const BUSY: &str = "open('begun', 'w').close()\nimport time\ntime.sleep(60)";

fn replica(url: &str) -> Server {
    Server::start(&[("DATABASE_URL", url), LEASE])
}

/// The same session, asked for at another replica.
fn at<'a>(caller: &'a Caller, session: &Session<'_>) -> Session<'a> {
    Session { caller, id: session.id.clone() }
}

async fn status(caller: &Caller, run: &Value) -> Value {
    let (status, run) = caller.get(&format!("/v1/runs/{}", run.as_str().unwrap())).await;
    assert_eq!(status, StatusCode::OK);
    run["status"].clone()
}

async fn becomes(caller: &Caller, path: &str, field: &str, value: &str) -> Value {
    must_come(async {
        loop {
            let (_, found) = caller.get(path).await;
            if found[field] == value {
                return found;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// A run that goes on, not waited for.
async fn running(session: &Session<'_>) -> Value {
    let caller = session.caller;
    let code = json!({"code": BUSY, "timeout_seconds": 100});
    let request = caller.request(Method::POST, &session.path("/exec")).json(&code);
    tokio::spawn(request.send());
    must_come(async {
        while session.download("begun").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (_, runs) = caller.get(&format!("/v1/runs?session_id={}", session.id)).await;
    runs["data"][0]["id"].clone()
}

#[tokio::test]
async fn a_session_is_served_by_its_replica_alone_and_seen_at_each() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (replica(&database.url()), replica(&database.url()));
    let (one, other) = (one.caller(), other.caller());
    let here = one.session().await;
    let there = at(&other, &here);
    let execution = here.exec("print('once')").await;
    assert_eq!(status(&other, &execution["run_id"]).await, "success");
    let (_, seen) = other.get(&format!("/v1/sessions/{}", here.id)).await;
    assert_eq!((&seen["id"], &seen["state"]), (&json!(here.id), &json!("ready")));
    let elsewhere = (409, "session_elsewhere".to_owned());
    let exec = other.post(&there.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&exec), elsewhere);
    assert_eq!(problem(&answer(other.request(Method::DELETE, &there.path(""))).await), elsewhere);
    assert_eq!(problem(&other.post(&there.path("/interrupt"), json!({})).await), elsewhere);
    let run = running(&here).await;
    let cancel = other.post(&format!("/v1/runs/{}/cancel", run.as_str().unwrap()), json!({})).await;
    assert_eq!(problem(&cancel), (409, "run_elsewhere".to_owned()));
    assert_eq!(status(&other, &run).await, "running");
    let (status, _) =
        one.post(&format!("/v1/runs/{}/cancel", run.as_str().unwrap()), json!({})).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    becomes(&other, &format!("/v1/runs/{}", run.as_str().unwrap()), "status", "cancelled").await;
    assert_eq!(here.delete().await, StatusCode::NO_CONTENT);
    let exec = other.post(&there.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&exec), (410, "session_deleted".to_owned()));
}

#[tokio::test]
async fn a_key_is_one_request_at_whichever_replica() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (replica(&database.url()), replica(&database.url()));
    let body = json!({"code": "import uuid\nprint(uuid.uuid4())"});
    let keyed = async |server: &Server, key: &str| {
        let caller = server.caller();
        let request = caller.request(Method::POST, "/v1/execute").header("idempotency-key", key);
        answer(request.json(&body)).await
    };
    let (_, first) = keyed(&one, "a").await;
    let (_, again) = keyed(&other, "a").await;
    assert_eq!((&first["stdout"], &first["run_id"]), (&again["stdout"], &again["run_id"]));
    let both = tokio::join!(keyed(&one, "b"), keyed(&other, "b"));
    let runs = [both.0, both.1].map(|(status, body)| (status.as_u16(), body["run_id"].clone()));
    let won: Vec<_> = runs.iter().filter(|(status, _)| *status == 200).collect();
    assert!(!won.is_empty() && won.iter().all(|(_, id)| *id == won[0].1), "{runs:?}");
    assert!(runs.iter().all(|(status, _)| [200, 409].contains(status)), "{runs:?}");
}

#[tokio::test]
async fn what_a_replica_that_was_killed_has_left_is_ended_by_another() {
    let Some(database) = Database::new() else { return };
    let (gone, heir) = (replica(&database.url()), replica(&database.url()));
    let (caller, left) = (heir.caller(), gone.caller());
    let session = left.session().await;
    let run = running(&session).await;
    let own = caller.session().await;
    gone.signal(libc::SIGKILL);
    gone.wait();
    let ended = becomes(&caller, &format!("/v1/sessions/{}", session.id), "state", "ended").await;
    assert_eq!(ended["end_reason"], "lost");
    let run = format!("/v1/runs/{}", run.as_str().unwrap());
    let run = becomes(&caller, &run, "status", "unknown").await;
    assert_eq!(run["failure"]["retry_safe"], false);
    assert_eq!(own.text("6 * 7").await, "42", "what is the heir's own goes on");
}

#[tokio::test]
async fn a_sandbox_elsewhere_is_taken_over_with_its_state() {
    let Some(database) = Database::new() else { return };
    let double = Double::start(&[]);
    let url = database.url();
    let (its_folder, folder) = (open_folder(), open_folder());
    let start = |folder: &tempfile::TempDir| {
        let mut settings = double.settings();
        settings.extend([("DATABASE_URL", url.as_str()), LEASE]);
        Server::start_in(&folder.path().join("data"), &settings)
    };
    let (gone, heir) = (start(&its_folder), start(&folder));
    let (left, caller) = (gone.caller(), heir.caller());
    let session = left.session().await;
    session.exec("x = 41").await;
    gone.signal(libc::SIGKILL);
    gone.wait();
    let mine = at(&caller, &session);
    let execution = must_come(async {
        loop {
            let said = caller.post(&mine.path("/exec"), json!({"code": "x + 1"})).await;
            if said.0 == StatusCode::OK {
                return said.1;
            }
            assert_eq!(problem(&said), (409, "session_elsewhere".to_owned()));
        }
    })
    .await;
    assert_eq!((&execution["text"], &execution["state_lost"]), (&json!("42"), &json!(false)));
    // the one that was gone comes back, and finds a sandbox that it has made once
    let back = start(&its_folder);
    let elsewhere = back.caller().post(&session.path("/exec"), json!({"code": "x"})).await;
    assert_eq!(problem(&elsewhere), (409, "session_elsewhere".to_owned()));
    let execution = mine.exec("x + 2").await;
    assert_eq!((&execution["text"], &execution["state_lost"]), (&json!("43"), &json!(false)));
}

#[tokio::test]
async fn a_replica_that_was_replaced_hands_nothing_over_and_ends() {
    let Some(database) = Database::new() else { return };
    let (asleep, heir) = (replica(&database.url()), replica(&database.url()));
    let (its, caller) = (asleep.caller(), heir.caller());
    let session = its.session().await;
    asleep.signal(libc::SIGSTOP);
    becomes(&caller, &format!("/v1/sessions/{}", session.id), "state", "ended").await;
    let late = its.request(Method::POST, &session.path("/exec")).json(&json!({"code": "1"}));
    let late = tokio::spawn(late.send());
    asleep.signal(libc::SIGCONT);
    if let Ok(late) = must_come(late).await.unwrap() {
        assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    assert!(!asleep.wait().success());
    let (_, runs) = caller.get(&format!("/v1/runs?session_id={}", session.id)).await;
    assert_eq!(runs["data"], json!([]));
}

#[tokio::test]
async fn a_database_that_was_away_makes_nobody_take_over() {
    let Some(server) = postgres::Server::start_private() else { return };
    let (one, other) = (replica(&server.url()), replica(&server.url()));
    let sessions = [one.caller(), other.caller()];
    let sessions = [sessions[0].session().await, sessions[1].session().await];
    for session in &sessions {
        session.exec("x = 1").await;
    }
    server.stop(postgres::Stop::Fast);
    // longer than a lease and what others wait for besides
    for session in &sessions {
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            let said = session.caller.post(&session.path("/exec"), json!({"code": "x"})).await;
            assert_eq!(problem(&said), (503, "store_unavailable".to_owned()));
        }
    }
    server.start();
    for session in &sessions {
        let execution = must_come(async {
            loop {
                let said = session.caller.post(&session.path("/exec"), json!({"code": "x"})).await;
                match said.0 {
                    StatusCode::OK => return said.1,
                    status => assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{}", said.1),
                }
            }
        })
        .await;
        assert_eq!((&execution["text"], &execution["state_lost"]), (&json!("1"), &json!(false)));
    }
}

#[tokio::test]
async fn replicas_that_start_at_once_make_the_tables_once() {
    let Some(database) = Database::new() else { return };
    let url = database.url();
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..3).map(|_| scope.spawn(|| replica(&url))).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    for counted in ["(select count(*) from replica) = 3", "(select count(*) from deployment) = 1"] {
        postgres::execute(&url, &format!("select 1 / (case when {counted} then 1 else 0 end)"));
    }
    for server in servers {
        assert_eq!(server.caller().session().await.text("1").await, "1");
    }
}

#[test]
fn migrate_makes_the_tables_and_a_later_version_s_are_refused() {
    let Some(database) = Database::new() else { return };
    let folder = open_folder();
    let run = |action: &str| {
        let mut command = command();
        command.arg(action).env("INTERPRETERD_DATABASE_URL", database.url());
        command.env("INTERPRETERD_DATA_DIR", folder.path().join("data"));
        command.env("INTERPRETERD_LISTEN", "127.0.0.1:0").output().unwrap()
    };
    for _ in 0..2 {
        let done = run("migrate");
        assert!(done.status.success(), "{done:?}");
        assert_eq!(done.stdout, b"the tables of the database are up to date\n");
    }
    postgres::execute(&database.url(), "select 1 / (1 - count(*)) from replica");
    let later =
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
        values (999, 'later', true, '', 0)";
    postgres::execute(&database.url(), later);
    for action in ["migrate", "serve"] {
        let refused = run(action);
        assert!(!refused.status.success());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("written by a later version of this program"), "{said}");
    }
}

#[tokio::test]
async fn a_sandbox_elsewhere_that_another_may_serve_is_ended_once_that_is_known() {
    let Some(server) = postgres::Server::start_private() else { return };
    let double = Double::start(&[]);
    let url = server.url();
    let mut settings = double.settings();
    settings.extend([("DATABASE_URL", url.as_str()), LEASE]);
    let service = Server::start(&settings);
    let caller = service.caller();
    let session = caller.session().await;
    server.stop(postgres::Stop::Fast);
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        caller.get("/readyz").await; // until its lease is out
    }
    let delete = answer(caller.request(Method::DELETE, &session.path(""))).await;
    assert_eq!(problem(&delete), (503, "store_unavailable".to_owned()));
    server.start();
    let path = format!("/v1/sessions/{}", session.id);
    let ended = becomes(&caller, &path, "state", "ended").await;
    assert_eq!(ended["end_reason"], "deleted");
}
