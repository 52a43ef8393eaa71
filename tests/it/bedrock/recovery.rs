//! What a start finds of the one before it, at AWS.

use std::path::Path;

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{losses, machine_of};
use crate::support::agentcore::AgentCore;
use crate::support::server::{Server, open_folder};
use crate::support::{Caller, Session, must_come, problem};

fn start(aws: &AgentCore, data_dir: &Path, more: &[(&str, &str)]) -> Server {
    Server::start_with(data_dir, &aws.settings(), more)
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
    let aws = AgentCore::start(&[]);
    let folder = open_folder();
    let first = start(&aws, folder.path(), &[]);
    let caller = first.caller();
    let session = caller.session_with(json!({"env": {"OWN": "yes"}})).await;
    session.exec("x = 7\nopen('kept.txt', 'w').write('here')").await;
    first.signal(libc::SIGKILL);
    first.wait();
    let second = start(&aws, folder.path(), &[]);
    let caller = second.caller();
    let session = same(&caller, &session);
    let execution = session.exec("import os\nx, open('kept.txt').read(), os.environ['OWN']").await;
    assert_eq!(execution["text"], "(7, 'here', 'yes')", "{execution}");
    assert_eq!((losses(&execution), &execution["files"]), ((false, false), &json!([])));
}

#[tokio::test]
async fn what_ran_at_a_kill_is_ended_and_never_run_again() {
    let aws = AgentCore::start(&[]);
    let folder = open_folder();
    let first = start(&aws, folder.path(), &[]);
    let caller = first.caller();
    let (cell, shell) = (caller.session().await, caller.session().await);
    cell.exec("x = 7").await;
    let code = "open('begun', 'a').write('x')\nimport time\ntime.sleep(500)";
    let body = json!({"code": code, "timeout_seconds": 600});
    let request = caller.request(Method::POST, &cell.path("/exec")).json(&body);
    let lost_cell = tokio::spawn(request.send());
    let command = "echo x >> begun; setsid sleep 4323 & sleep 4323";
    let request = caller.request(Method::POST, &shell.path("/shell"));
    let lost_shell = tokio::spawn(request.json(&json!({"command": command})).send());
    running(&cell).await;
    running(&shell).await;
    first.signal(libc::SIGKILL);
    first.wait();
    assert!(lost_cell.await.unwrap().is_err() && lost_shell.await.unwrap().is_err());
    let second = start(&aws, folder.path(), &[]);
    let caller = second.caller();
    let execution = same(&caller, &cell).exec("x, open('begun').read()").await;
    assert_eq!(execution["text"], "(7, 'x')", "{execution}");
    assert_eq!(losses(&execution), (false, false));
    let left = "import glob\nsum(b'4323' in open(name, 'rb').read().split(b'\\0') for name in glob.glob('/proc/[0-9]*/cmdline'))";
    assert_eq!(same(&caller, &shell).text(left).await, "0");
    let (_, runs) = caller.get(&format!("/v1/runs?session_id={}", cell.id)).await;
    let statuses: Vec<_> =
        runs["data"].as_array().unwrap().iter().map(|run| &run["status"]).collect();
    assert_eq!(statuses, ["success", "unknown", "success"]);
}

#[tokio::test]
async fn a_machine_that_ended_meanwhile_ends_its_session() {
    let aws = AgentCore::start(&[]);
    let folder = open_folder();
    let first = start(&aws, folder.path(), &[]);
    let caller = first.caller();
    let session = caller.session().await;
    let id = machine_of(&session).await;
    first.signal(libc::SIGKILL);
    first.wait();
    aws.kill_machine(&id).await;
    let second = start(&aws, folder.path(), &[]);
    let caller = second.caller();
    let after = caller.post(&same(&caller, &session).path("/exec"), json!({"code": "1"})).await;
    assert_eq!(problem(&after), (410, "session_lost".into()));
}

#[tokio::test]
async fn machines_that_nobody_owns_are_ended_and_others_are_let_be() {
    let aws = AgentCore::start(&[]);
    let (folder, other_folder) = (open_folder(), open_folder());
    let other = start(&aws, other_folder.path(), &[]);
    let (caller, others) = (other.caller(), other.caller());
    let theirs = others.session().await;
    // killed after the machine was made and before that was written down
    let first = start(&aws, folder.path(), &[("INTERPRETERD_TEST_CRASH_AT", "session.made")]);
    let request = first.caller().request(Method::POST, "/v1/sessions").json(&json!({}));
    assert!(request.send().await.is_err());
    first.wait();
    assert_eq!(aws.machines().await.len(), 2);
    let _second = start(&aws, folder.path(), &[]);
    must_come(async {
        while aws.machines().await.len() != 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(aws.machines().await[0]["sessionId"], machine_of(&same(&caller, &theirs)).await);
    assert_eq!(theirs.text("6 * 7").await, "42");
}

#[tokio::test]
async fn a_session_that_got_another_machine_is_found_there() {
    let aws = AgentCore::start(&[]);
    let folder = open_folder();
    let first = start(&aws, folder.path(), &[]);
    let caller = first.caller();
    let session = caller.session().await;
    aws.kill_machine(&machine_of(&session).await).await;
    session.exec("x = 7").await;
    first.signal(libc::SIGKILL);
    first.wait();
    let second = start(&aws, folder.path(), &[]);
    let caller = second.caller();
    let execution = same(&caller, &session).exec("x").await;
    assert_eq!((&execution["text"], losses(&execution)), (&json!("7"), (false, false)));
}
