//! How the service starts, ends and comes back.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::processes::{all_gone, descendants};
use crate::support::server::{Server, command, open_folder};

/// A session with a cell that has begun and does not end, and children of its own.
async fn busy(server: &Server) -> (String, tokio::task::JoinHandle<Option<(StatusCode, Value)>>) {
    let caller = server.caller();
    let session = caller.session().await;
    let id = session.id.clone();
    let path = session.path("/exec");
    let code = "import subprocess, time\np = subprocess.Popen(['sleep', '300'])\nopen('begun', 'w').write('x')\ntime.sleep(300)";
    let running = tokio::spawn({
        let caller = server.caller();
        async move {
            let request = caller
                .request(reqwest::Method::POST, &path)
                .json(&json!({"code": code, "timeout_seconds": 500}));
            let response = request.send().await.ok()?;
            let status = response.status();
            Some((status, response.json().await.ok()?))
        }
    });
    while session.download("begun").await.status() != StatusCode::OK {
        tokio::task::yield_now().await;
    }
    (id, running)
}

#[tokio::test]
async fn sigterm_records_what_runs_leaves_no_process_and_exits_0() {
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let server = Server::start_in(&data_dir, &[("SHUTDOWN_GRACE_SECONDS", "0.5")]);
    let (session, running) = busy(&server).await;
    let processes = descendants(server.pid());
    assert!(processes.len() >= 4, "warden, zygote, room, kernel, sleep: {processes:?}");
    server.signal(libc::SIGTERM);
    let (status, execution) = running.await.unwrap().expect("the caller gets its answer");
    assert_eq!(
        (status, &execution["status"], &execution["failure"]["kind"]),
        (StatusCode::OK, &json!("error"), &json!("interrupted"))
    );
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    all_gone(&processes);

    let again = Server::start_in(&data_dir, &[]);
    let caller = again.caller();
    let (_, run) = caller.get(&format!("/v1/runs/{}", execution["run_id"].as_str().unwrap())).await;
    assert_eq!(
        (&run["status"], &run["code_exec_results"][0]["execution"]),
        (&json!("cancelled"), &execution)
    );
    let (_, session) = caller.get(&format!("/v1/sessions/{session}")).await;
    assert_eq!((&session["state"], &session["end_reason"]), (&json!("ended"), &json!("lost")));
}

#[tokio::test]
async fn sigterm_lets_what_runs_come_to_its_end_within_the_grace() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    let running =
        session.exec("open('begun', 'w').write('x')\nimport time; time.sleep(0.5); 'whole'");
    let ending = async {
        while session.download("begun").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
        server.signal(libc::SIGTERM);
    };
    let (execution, ()) = tokio::join!(running, ending);
    assert_eq!(execution["text"], "'whole'");
    assert_eq!(server.wait().code(), Some(0));
}

#[tokio::test]
async fn kill_9_leaves_no_process_and_the_run_is_unknown_after_the_restart() {
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let server = Server::start_in(&data_dir, &[]);
    let (session, running) = busy(&server).await;
    let processes = descendants(server.pid());
    server.signal(libc::SIGKILL);
    assert!(running.await.unwrap().is_none());
    server.wait();
    all_gone(&processes);

    let again = Server::start_in(&data_dir, &[]);
    let caller = again.caller();
    let (_, runs) = caller.get(&format!("/v1/runs?session_id={session}")).await;
    let run = &runs["data"][0];
    assert_eq!(
        (&run["status"], &run["failure"]["kind"], &run["failure"]["retry_safe"]),
        (&json!("unknown"), &json!("sandbox_lost"), &json!(false))
    );
    let (_, ended) = caller.get(&format!("/v1/sessions/{session}")).await;
    assert_eq!((&ended["state"], &ended["end_reason"]), (&json!("ended"), &json!("lost")));
    let (status, _) = caller.get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_data_folder_is_used_by_one_process_at_a_time() {
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let server = Server::start_in(&data_dir, &[]);
    let second = command()
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&data_dir)
        .output()
        .unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("is used by another process"), "{said}");
    assert_eq!(server.caller().get("/healthz").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_warden_that_is_killed_loses_the_state_and_the_provider_recovers() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let session = caller.session().await;
    session.exec("x = 1\nopen('a.txt', 'w').write('kept')").await;
    let warden = descendants(server.pid())[0];
    let pid = rustix::process::Pid::from_raw(warden.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let execution = loop {
        // until the death is seen, the kernel is there
        let (status, execution) = caller
            .post(&session.path("/exec"), json!({"code": "'x' in globals(), open('a.txt').read()"}))
            .await;
        if status == StatusCode::OK && execution["text"] == "(False, 'kept')" {
            break execution;
        }
    };
    assert_eq!(
        (&execution["status"], &execution["files_lost"]),
        (&json!("success"), &json!(false))
    );
    assert_eq!(caller.session().await.text("1 + 1").await, "2");
}

#[tokio::test]
async fn the_service_is_not_root_while_it_serves() {
    let server = Server::start(&[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let ids: Vec<_> = line("Uid:").split_whitespace().skip(1).map(str::to_owned).collect();
    assert!(ids.iter().all(|id| id != "0"), "{ids:?}");
    assert_eq!(line("CapEff:").split_whitespace().nth(1), Some("0000000000000000"));
    for pid in descendants(server.pid()) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let uid = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        assert_ne!(uid.split_whitespace().nth(1), Some("0"));
    }
}

#[test]
fn check_says_what_works_and_what_is_missing() {
    let folder = open_folder();
    let check = |more: &[&str]| {
        let mut command = command();
        command
            .args(["check", "--data-dir"])
            .arg(folder.path().join("data"))
            .args(more)
            .output()
            .unwrap()
    };
    let good = check(&[]);
    let said = String::from_utf8_lossy(&good.stdout).into_owned();
    assert!(good.status.success(), "{said}");
    assert!(
        said.contains("ok       provider local: Python 3.1")
            && said.ends_with("serve would start\n"),
        "{said}"
    );
    let missing = check(&["--guest-dir", "/nowhere"]);
    let said = String::from_utf8_lossy(&missing.stdout).into_owned();
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        said.contains("missing  provider local:") && said.contains("interpreterd guest install"),
        "{said}"
    );
}

#[tokio::test]
async fn providers_say_what_they_are() {
    let caller = crate::support::server::caller();
    let (_, providers) = caller.get("/v1/providers").await;
    let local = &providers["data"][0];
    assert_eq!(
        (&local["name"], &local["ready"], &local["default"]),
        (&json!("local"), &json!(true), &json!(true))
    );
    assert!(local["packages"]["pandas"].is_string(), "{local}");
}

#[test]
fn others_of_the_host_cannot_read_the_data_folder_old_or_new() {
    use std::os::unix::fs::PermissionsExt;
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let mode = || std::fs::metadata(&data_dir).unwrap().permissions().mode() & 0o777;
    drop(Server::start_in(&data_dir, &[]));
    assert_eq!(mode(), 0o700);
    std::fs::set_permissions(&data_dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    drop(Server::start_in(&data_dir, &[]));
    assert_eq!(mode(), 0o750, "as earlier versions made it");
}
