//! What a start finds of the one before it, at E2B.

use std::path::Path;

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::furnished;
use crate::support::double::Double;
use crate::support::server::{Server, open_folder};
use crate::support::{Caller, Session, must_come, problem};

fn start(double: &Double, data_dir: &Path, more: &[(&str, &str)]) -> Server {
    Server::start_with(data_dir, &double.settings(), more)
}

fn same<'a>(caller: &'a Caller, session: &Session<'_>) -> Session<'a> {
    Session { caller, id: session.id.clone() }
}

async fn running(session: &Session<'_>) {
    must_come(async {
        while session.download("begun").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn sessions_outlive_a_kill_with_their_variables_and_files() {
    let double = Double::start(&[]);
    let folder = open_folder();
    let first = start(&double, folder.path(), &[]);
    let caller = first.caller();
    let idle = caller.session_with(json!({"env": {"OWN": "yes"}})).await;
    idle.exec("x = 7\nopen('kept.txt', 'w').write('here')").await;
    let busy = caller.session().await;
    busy.exec("y = 8").await;
    let code = "open('begun', 'w').close()\nimport time\ntime.sleep(60)";
    let path = busy.path("/exec");
    let cell = caller.post(&path, json!({"code": code}));
    let killing = async {
        running(&busy).await;
        first.signal(libc::SIGKILL);
    };
    let request = tokio::time::timeout(std::time::Duration::from_secs(20), async {
        tokio::select! { _ = cell => (), () = async { killing.await; std::future::pending::<()>().await } => () }
    });
    let _ = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(request)).await;
    first.wait();
    drop(first);
    let second = start(&double, folder.path(), &[]);
    let caller = second.caller();
    let idle = same(&caller, &idle);
    let execution = idle.exec("import os\nx, open('kept.txt').read(), os.environ['OWN']").await;
    assert_eq!(execution["text"], "(7, 'here', 'yes')", "{execution}");
    let told = (&execution["state_lost"], &execution["files"]);
    assert_eq!(told, (&json!(false), &json!([])), "what lay there before is no cell's doing");
    let busy = same(&caller, &busy);
    let execution = busy.exec("y").await;
    assert_eq!((&execution["text"], &execution["state_lost"]), (&json!("8"), &json!(false)));
    let (_, runs) = caller.get(&format!("/v1/runs?session_id={}", busy.id)).await;
    let statuses: Vec<&Value> =
        runs["data"].as_array().unwrap().iter().map(|run| &run["status"]).collect();
    assert_eq!(statuses, ["success", "unknown", "success"]);
}

#[tokio::test]
async fn a_cell_that_goes_on_after_a_kill_is_ended_and_its_cost_is_said() {
    let double = Double::start(&[]);
    let folder = open_folder();
    let first = start(&double, folder.path(), &[]);
    let caller = first.caller();
    let session = caller.session().await;
    session.exec("x = 7").await;
    let code = "open('begun', 'w').close()\nimport time\nwhile True:\n  try: time.sleep(60)\n  except KeyboardInterrupt: pass";
    let request = caller.request(reqwest::Method::POST, &session.path("/exec"));
    let cell = tokio::spawn(request.json(&json!({"code": code})).send());
    running(&session).await;
    first.signal(libc::SIGKILL);
    first.wait();
    assert!(cell.await.unwrap().is_err());
    let second = start(&double, folder.path(), &[]);
    let caller = second.caller();
    let execution = same(&caller, &session).exec("'x' in globals()").await;
    assert_eq!((&execution["text"], &execution["state_lost"]), (&json!("False"), &json!(true)));
}

#[tokio::test]
async fn a_command_that_was_running_at_a_kill_is_ended_before_the_next_cell() {
    let double = Double::start(&[]);
    let folder = open_folder();
    let first = start(&double, folder.path(), &[]);
    let caller = first.caller();
    let session = caller.session().await;
    let command = "touch begun; setsid sleep 4322 & sleep 4322";
    let request = caller.request(reqwest::Method::POST, &session.path("/shell"));
    let shell = tokio::spawn(request.json(&json!({"command": command})).send());
    running(&session).await;
    first.signal(libc::SIGKILL);
    first.wait();
    assert!(shell.await.unwrap().is_err());
    let second = start(&double, folder.path(), &[]);
    let caller = second.caller();
    let session = same(&caller, &session);
    let left = "import glob\nsum(b'4322' in open(name, 'rb').read().split(b'\\0') for name in glob.glob('/proc/[0-9]*/cmdline'))";
    assert_eq!(session.text(left).await, "0");
}

#[tokio::test]
async fn a_cell_that_is_interrupted_before_its_hand_over_never_runs() {
    let double = Double::start(&[]);
    let folder = open_folder();
    let first = start(&double, folder.path(), &[]);
    let caller = first.caller();
    let session = caller.session().await;
    first.signal(libc::SIGKILL);
    first.wait();
    let second = start(&double, folder.path(), &[]);
    let caller = second.caller();
    let session = same(&caller, &session);
    // the kernel of an earlier start is given a second before it is asked whether it listens
    let mut cell = std::pin::pin!(session.exec("open('ran', 'w').close()"));
    let interrupt = || async {
        let request = caller.request(reqwest::Method::POST, &session.path("/interrupt"));
        assert!(crate::support::send(request).await.status().is_success());
    };
    let execution = loop {
        tokio::select! {
            execution = &mut cell => break execution,
            () = interrupt() => {}
        }
    };
    assert_eq!(execution["failure"]["kind"], "interrupted", "{execution}");
    assert_eq!(session.text("import os\nos.path.exists('ran')").await, "False");
}

#[tokio::test]
async fn orphans_are_ended_and_those_of_another_deployment_are_left_alone() {
    let double = Double::start(&[]);
    let (folder, elsewhere) = (open_folder(), open_folder());
    let other = start(&double, elsewhere.path(), &[]);
    let other_caller = other.caller();
    let (theirs, their_sandbox) = furnished(&other_caller).await;
    let crashing = start(&double, folder.path(), &[("INTERPRETERD_TEST_CRASH_AT", "session.made")]);
    let request = crashing.caller().request(reqwest::Method::POST, "/v1/sessions");
    assert!(request.json(&json!({})).send().await.is_err());
    assert!(!crashing.wait().success());
    double.has_sandboxes(2).await;
    let second = start(&double, folder.path(), &[]);
    double.has_sandboxes(1).await;
    assert_eq!(double.sandboxes().await[0]["sandboxID"], their_sandbox);
    assert_eq!(theirs.text("1 + 1").await, "2");
    let (_, sessions) = second.caller().get("/v1/sessions").await;
    let session = &sessions["data"][0];
    assert_eq!((&session["state"], &session["end_reason"]), (&json!("ended"), &json!("lost")));
}

#[tokio::test]
async fn a_one_shots_sandbox_is_ended_at_the_next_start() {
    let double = Double::start(&[]);
    let folder = open_folder();
    let first = start(&double, folder.path(), &[]);
    let request = first.caller().request(reqwest::Method::POST, "/v1/execute");
    let cell = json!({"code": "import time\ntime.sleep(60)"});
    let cell = tokio::spawn(request.json(&cell).send());
    must_come(async {
        while double.requests("POST /execute").await.len() < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    first.signal(libc::SIGKILL);
    first.wait();
    assert!(cell.await.unwrap().is_err());
    double.has_sandboxes(1).await;
    let second = start(&double, folder.path(), &[]);
    double.has_sandboxes(0).await;
    let (_, sessions) = second.caller().get("/v1/sessions").await;
    let session = &sessions["data"][0];
    assert_eq!((&session["one_shot"], &session["end_reason"]), (&json!(true), &json!("lost")));
}

/// e2b-dev/infra 2041: an orchestrator's restart loses all sandboxes.
#[tokio::test]
async fn sandboxes_that_are_gone_after_a_start_are_lost_sessions() {
    let double = Double::start(&[]);
    let folder = open_folder();
    let first = start(&double, folder.path(), &[]);
    let caller = first.caller();
    let (session, id) = furnished(&caller).await;
    first.signal(libc::SIGKILL);
    first.wait();
    double.kill_sandbox(&id).await;
    let second = start(&double, folder.path(), &[]);
    let answer = second.caller().post(&session.path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&answer), (410, "session_lost".into()));
}

/// e2b-dev/E2B 582, uncaged 69: a sandbox is not there for a moment; a body is always sent.
#[tokio::test]
async fn a_sandbox_that_is_not_there_for_a_moment_is_found_again() {
    let double = Double::start(&[]);
    let folder = open_folder();
    let first = start(&double, folder.path(), &[]);
    let caller = first.caller();
    let session = caller.session().await;
    session.exec("x = 7").await;
    first.signal(libc::SIGKILL);
    first.wait();
    let body = json!({"code": 404, "message": "Sandbox doesn't exist"});
    double.fault(json!({"match": "/connect$", "status": 404, "body": body, "times": 2})).await;
    let second = start(&double, folder.path(), &[]);
    let caller = second.caller();
    assert_eq!(same(&caller, &session).text("x").await, "7");
    let connects = double.requests("POST ").await;
    let connects =
        connects.iter().filter(|call| call["path"].as_str().unwrap().ends_with("/connect"));
    let mut count = 0;
    for call in connects {
        let body: Value = serde_json::from_str(call["body"].as_str().unwrap()).unwrap();
        assert_eq!(body["timeout"], 600);
        count += 1;
    }
    assert_eq!(count, 3);
}

#[tokio::test]
async fn a_cloud_that_is_out_of_order_at_the_start_loses_no_session() {
    let double = Double::start(&[]);
    let folder = open_folder();
    let first = start(&double, folder.path(), &[]);
    let caller = first.caller();
    let session = caller.session().await;
    session.exec("x = 7").await;
    first.signal(libc::SIGKILL);
    first.wait();
    let fault =
        json!({"match": "/connect$", "status": 503, "times": 4, "headers": {"Retry-After": "0"}});
    double.fault(fault).await;
    let second = start(&double, folder.path(), &[]);
    let caller = second.caller();
    assert!(second.log().contains("is looked for later"));
    assert_eq!(same(&caller, &session).text("x").await, "7");
}

#[tokio::test]
async fn a_service_that_is_told_to_stop_leaves_its_sandboxes_to_the_next_start() {
    let double = Double::start(&[]);
    let folder = open_folder();
    let first = start(&double, folder.path(), &[]);
    let caller = first.caller();
    let session = caller.session().await;
    session.exec("x = 7").await;
    first.signal(libc::SIGTERM);
    assert!(first.wait().success());
    let second = start(&double, folder.path(), &[]);
    let caller = second.caller();
    let session = same(&caller, &session);
    assert_eq!(session.text("x").await, "7");
    let (_, told) = caller.get(&session.path("")).await;
    assert_eq!((&told["state"], &told["files_dir"]), (&json!("ready"), &json!("/files")));
    session.delete().await;
    double.has_sandboxes(0).await;
}

#[tokio::test]
async fn no_token_is_in_what_is_written_down_or_logged() {
    let double = Double::start(&[]);
    let folder = open_folder();
    let server = Server::start_with(
        folder.path(),
        &[double.settings().as_slice(), &[("LOG", "trace")]].concat(),
        &[],
    );
    let caller = server.caller();
    let (session, _) = furnished(&caller).await;
    session.exec("1").await;
    let told = caller.get(&session.path("")).await.1;
    let sandboxes = double.sandboxes().await;
    let secrets = ["envdAccessToken", "trafficAccessToken"]
        .map(|name| sandboxes[0][name].as_str().unwrap().to_owned());
    assert!(secrets.iter().all(|secret| secret.len() > 10));
    server.signal(libc::SIGTERM);
    server.wait();
    let mut places = vec![server.log(), told.to_string()];
    for name in ["interpreterd.db", "interpreterd.db-wal"] {
        let bytes = std::fs::read(folder.path().join(name)).unwrap_or_default();
        places.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    for secret in secrets.iter().map(String::as_str).chain([crate::support::double::KEY]) {
        assert!(places.iter().all(|place| !place.contains(secret)), "a secret was kept");
    }
}
