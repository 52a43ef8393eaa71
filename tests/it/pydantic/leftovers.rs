//! However a session or the service ends, no process and no folder of its sandboxes is left.

use std::path::Path;

use serde_json::{Value, json};

use super::{denos, folder_of};
use crate::support::processes::{all_gone, descendants};
use crate::support::pydantic::{serve_entry, upstream};
use crate::support::server::Server;
use crate::support::{Session, must_come};

const BUSY: &str = "open('begun', 'w').close()\nwhile True: pass";

/// A service that has both servers, its default the genuine one.
fn serve_both(pool: &str) -> Server {
    serve_entry(&upstream().0.lines(), &[("PYDANTIC_POOL", pool)])
}

/// Waits until a session's cell runs, or none does.
async fn is(session: &Session<'_>, state: &str) {
    must_come(async {
        while session.caller.get(&session.path("")).await.1["state"] != state {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Time that a process had on a processor, in hundredths of a second.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Ends a service, by a signal, while these sessions of its are busy. Gives the processes it had.
async fn end_while_busy(server: &Server, sessions: &[&Session<'_>], signal: i32) -> Vec<u32> {
    let runs = sessions.iter().map(|session| {
        let request = session.caller.request(reqwest::Method::POST, &session.path("/exec"));
        request.json(&json!({"code": "while True: pass", "timeout_seconds": 300})).send()
    });
    let before: Vec<(u32, u64)> =
        denos(server).into_iter().map(|pid| (pid, cpu_ticks(pid))).collect();
    let ending = async {
        for session in sessions {
            is(session, "busy").await;
        }
        // their code computes by now: half a second is more than a start of it takes
        let works = |(pid, ticks): &&(u32, u64)| cpu_ticks(*pid) > ticks + 50;
        must_come(async {
            while before.iter().filter(works).count() < sessions.len() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let pids = descendants(server.pid());
        server.signal(signal);
        server.wait();
        pids
    };
    tokio::join!(futures::future::join_all(runs), ending).1
}

#[tokio::test]
async fn a_service_that_is_killed_leaves_no_deno_of_ours_and_none_of_upstream() {
    let server = serve_both("0");
    let caller = server.caller();
    let own = caller.session_with(json!({"provider": "pydantic"})).await;
    let foreign = caller.session().await;
    all_gone(&end_while_busy(&server, &[&own, &foreign], libc::SIGKILL).await);
}

#[tokio::test]
async fn a_service_that_is_told_to_end_leaves_no_deno_and_no_file_behind() {
    let server = Server::start(&[("DEFAULT_PROVIDER", "pydantic")]);
    let caller = server.caller();
    let (busy, idle) = (caller.session().await, caller.session().await);
    idle.exec("open('made', 'w').write('x')").await;
    assert_eq!((denos(&server).len(), folders(&server.data_dir).len()), (2, 2));
    all_gone(&end_while_busy(&server, &[&busy], libc::SIGTERM).await);
    assert_eq!(folders(&server.data_dir), Vec::<String>::new());
}

/// The folders of sandboxes that are there.
fn folders(data_dir: &Path) -> Vec<String> {
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    entries(&data_dir.join("pydantic"))
        .flat_map(|entry| entries(&entry.path().join("files")))
        .map(|folder| folder.file_name().to_string_lossy().into_owned())
        .collect()
}

#[tokio::test]
async fn sessions_that_are_over_leave_no_process_and_no_folder() {
    let server = serve_both("1");
    let caller = server.caller();
    let kept = |server: &Server| (denos(server).len(), folders(&server.data_dir).len());
    must_come(async {
        while kept(&server) != (1, 1) {
            tokio::task::yield_now().await; // the one that is kept ready
        }
    })
    .await;
    for provider in ["pydantic", "own"] {
        let session = caller.session_with(json!({"provider": provider})).await;
        session.put("a.txt", "x").await;
        session.exec_with(json!({"code": "while True: pass", "timeout_seconds": 1})).await;
        session.exec("import os\nos.makedirs('a/b/c')\nopen('a/b/c/d', 'w').close()").await;
        is(&session, "ready").await;
        let path = session.path("/exec");
        let body = json!({"code": BUSY, "timeout_seconds": 300});
        let ending = async {
            is(&session, "busy").await;
            assert_eq!(session.delete().await, 204);
        };
        let ((status, told), ()) = tokio::join!(caller.post(&path, body), ending);
        // it had begun, or was about to
        let is_told = told["state_lost"] == true || told["code"] == "session_deleted";
        assert!(is_told, "{status}: {told}");
        must_come(async {
            while kept(&server) != (1, 1) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn what_an_earlier_start_has_left_is_removed() {
    let folder = crate::support::server::open_folder();
    let data_dir = folder.path().join("data");
    let settings = [("DEFAULT_PROVIDER", "pydantic")];
    let server = Server::start_in(&data_dir, &settings);
    let caller = server.caller();
    let session = caller.session().await;
    session.put("kept.txt", "x").await;
    let left = folder_of(&server, &session).await;
    server.signal(libc::SIGKILL);
    server.wait();
    assert!(left.join("kept.txt").exists());
    let again = Server::start_in(&data_dir, &settings);
    let caller = again.caller();
    caller.session().await;
    assert!(!left.exists(), "it goes before the next sandbox is made");
    let (_, told) = caller.get(&format!("/v1/sessions/{}", session.id)).await;
    let state = [&told["state"], &told["end_reason"]];
    assert_eq!(state, [&Value::from("ended"), &Value::from("lost")]);
}
