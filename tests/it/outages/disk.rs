//! The disk of the data folder is full, and has room again.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::load::Load;
use super::{UNTIL_GO, has_begun, is_ready, run_of};
use crate::support::server::{Server, open_folder};
use crate::support::{must_come, send};

/// A small disk in a folder, away again when dropped, whatever happened.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        let folder = open_folder();
        run("mount", &["-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs"], folder.path());
        Self(folder)
    }

    fn data_dir(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn ballast(&self) -> PathBuf {
        self.0.path().join("ballast")
    }

    /// Takes all the room there is.
    fn fill(&self) {
        let options = std::fs::File::options().append(true).create(true).clone();
        let mut ballast = options.open(self.ballast()).unwrap();
        for piece in [1 << 20, 1 << 12, 1] {
            let piece = vec![0; piece];
            while ballast.write_all(&piece).is_ok() {}
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["--lazy"], self.0.path());
    }
}

fn run(program: &str, options: &[&str], folder: &std::path::Path) {
    #[expect(clippy::disallowed_methods, reason = "mounting is the work of a program")]
    let mut command = Command::new(program);
    let done = command.args(options).arg(folder).output().unwrap();
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Only root mounts.
fn disk() -> Option<Disk> {
    rustix::process::geteuid().is_root().then(Disk::new)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_is_full_under_load_and_has_room_again() {
    let Some(disk) = disk() else { return };
    let server = Server::start_in(&disk.data_dir(), &[]);
    let caller = server.caller();
    let session = caller.session().await;
    let load = Load::start(&server);
    load.goes_on(5).await;
    let running = session.exec(UNTIL_GO);
    let full = async {
        has_begun(&session).await;
        disk.fill();
        load.is_refused().await;
        disk.fill();
        session.put("go", "").await;
    };
    let (execution, ()) = tokio::join!(running, full);
    assert_eq!(execution["stdout"], "kept\n", "the answer is given all the same");
    load.is_refused().await;
    disk.empty();
    is_ready(&caller, StatusCode::OK).await;
    load.goes_on(5).await;
    assert_eq!(session.delete().await, StatusCode::NO_CONTENT);
    load.settle(&server).await;
    let (_, run) = caller.get(&run_of(&execution)).await;
    assert_eq!(run["code_exec_results"][0]["execution"], execution);
}

#[tokio::test]
async fn a_file_that_the_full_disk_does_not_take_costs_the_run_nothing_else() {
    let Some(disk) = disk() else { return };
    let server = Server::start_in(&disk.data_dir(), &[]);
    let caller = server.caller();
    let session = caller.session().await;
    let code = format!("open('big', 'wb').write(b'x' * 1_000_000)\n{UNTIL_GO}");
    let body = json!({"code": code, "keep_files": true});
    let running = session.exec_with(body);
    let full = async {
        has_begun(&session).await;
        disk.fill();
        session.put("go", "").await;
    };
    let (execution, ()) = tokio::join!(running, full);
    let files = execution["output_files"].as_array().unwrap();
    assert_eq!((files.len(), &files[0]["path"]), (1, &json!("begun")), "{execution}");
    let told = (&execution["status"], &execution["stdout"], &execution["truncated"]);
    assert_eq!(told, (&json!("success"), &json!("kept\n"), &json!(true)), "and it is said");
    disk.empty();
    is_ready(&caller, StatusCode::OK).await;
    let written = async {
        loop {
            let (_, run) = caller.get(&run_of(&execution)).await;
            if run["status"] != "running" {
                return run;
            }
        }
    };
    let run = must_come(written).await;
    assert_eq!(run["code_exec_results"][0]["execution"], execution);
    let file = caller.request(Method::GET, files[0]["url"].as_str().unwrap());
    assert_eq!(send(file).await.status(), StatusCode::OK);
}
