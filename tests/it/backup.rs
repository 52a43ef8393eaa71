//! A backup that is made while the service works, and a service that is restored from it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::postgres::{Database, programs};
use crate::support::server::{Server, open_folder};
use crate::support::{Caller, must_come, send};

/// A run's cells leave files: one of a few bytes, one that is larger than what goes to disk at once.
/// What they print is too long for a row.
const CODE: &str = "import os
open('small.txt', 'w').write(os.urandom(8).hex())
open('large.bin', 'wb').write(os.urandom(1_100_000))
print('x' * 100_000)";

/// As docs/operating.md has it, in Python for the command line of SQLite, which not every host has.
const BACKUP: &str = "
import sqlite3, sys
source, target = sqlite3.connect(sys.argv[1]), sqlite3.connect(sys.argv[2])
source.backup(target)
target.close()
";
const VACUUM_INTO: &str = "
import sqlite3, sys
sqlite3.connect(sys.argv[1]).execute('vacuum into ?', sys.argv[2:])
";

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_is_backed_up_while_it_is_written_and_restored() {
    for program in [BACKUP, VACUUM_INTO] {
        let copy = |from: &Path, to: &Path| {
            let [from, to] = [from, to].map(|folder| folder.join("interpreterd.db"));
            run("/usr/bin/python3", &["-c", program, text(&from), text(&to)]);
        };
        backed_up(&[], &[], copy).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_backed_up_while_it_is_written_and_restored() {
    let Some(database) = Database::new() else { return };
    let restored = Database::new().unwrap();
    let (url, restored_url) = (database.url(), restored.url());
    let program = |name: &str| text(&programs().join(name)).to_owned();
    let copy = |from: &Path, to: &Path| {
        let dump = text(&to.join("dump.sql")).to_owned();
        run(&program("pg_dump"), &["--no-owner", "--file", &dump, &url]);
        // who this replica is: what it had begun is its own to end
        std::fs::copy(from.join("replica"), to.join("replica")).unwrap();
        let options = ["--quiet", "--set", "ON_ERROR_STOP=1", "--file", &dump, &restored_url];
        run(&program("psql"), &options);
        std::fs::remove_file(dump).unwrap();
    };
    backed_up(&[("DATABASE_URL", &url)], &[("DATABASE_URL", &restored_url)], copy).await;
}

/// What is told of a run before its backup, and the contents of its files.
type Told = BTreeMap<String, (Value, Vec<Vec<u8>>)>;

async fn backed_up(
    settings: &[(&str, &str)],
    restored_settings: &[(&str, &str)],
    copy_database: impl Fn(&Path, &Path),
) {
    let folder = open_folder();
    let [data, restored] = ["data", "restored"].map(|name| folder.path().join(name));
    let server = Server::start_in(&data, settings);
    let stop = CancellationToken::new();
    let (done, mut seen) = watch::channel(0);
    let mut load = JoinSet::new();
    for _ in 0..4 {
        load.spawn(executes(server.base.clone(), done.clone(), stop.clone()));
    }
    let caller = server.caller();
    must_come(seen.wait_for(|done| *done >= 10)).await.unwrap();
    let before = all_runs(&caller).await;
    std::fs::create_dir(&restored).unwrap();
    // ends that wait, then the rows, then the blobs: a blob is there before any row speaks of it
    run("cp", &["-r", text(&data.join("journal")), text(&restored)]);
    copy_database(&data, &restored);
    let then = *done.borrow();
    must_come(seen.wait_for(|done| *done > then + 4)).await.unwrap(); // work goes on
    copy_blobs(&data, &restored);
    stop.cancel();
    load.join_all().await;
    server.signal(libc::SIGKILL);
    server.wait();
    let owner = format!("--reference={}", text(&data));
    run("chown", &["-R", &owner, text(&restored)]);
    std::fs::remove_dir_all(&data).unwrap();

    let server = Server::start_in(&restored, restored_settings);
    let found = all_runs(&server.caller()).await;
    for (id, told) in &before {
        assert!(found.get(id) == Some(told), "{id} is not what it was");
    }
    let (_, execution) = server.caller().post("/v1/execute", json!({"code": "print(1)"})).await;
    assert_eq!(execution["stdout"], "1\n", "{execution}");
}

/// One run after the other until told to stop.
async fn executes(base: String, done: watch::Sender<usize>, stop: CancellationToken) {
    let caller = Caller::new(&base);
    while !stop.is_cancelled() {
        let (status, execution) = caller.post("/v1/execute", json!({"code": CODE})).await;
        assert_eq!((status, &execution["status"]), (StatusCode::OK, &json!("success")));
        done.send_modify(|done| *done += 1);
    }
}

/// Every run that has ended well, whole, with the contents of its files: whatever a row speaks of is
/// there. None is open that nobody works on.
async fn all_runs(caller: &Caller) -> Told {
    let mut told = Told::new();
    let mut after = String::new();
    loop {
        let (status, page) = caller.get(&format!("/v1/runs?limit=100{after}")).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        for summary in page["data"].as_array().unwrap() {
            let id = summary["id"].as_str().unwrap().to_owned();
            let (status, run) = caller.get(&format!("/v1/runs/{id}")).await;
            assert_eq!(status, StatusCode::OK, "{run}");
            if run["status"] != "success" {
                continue;
            }
            let mut files = Vec::new();
            for file in run["output_files"].as_array().unwrap() {
                let url = file["url"].as_str().unwrap();
                let response = send(caller.request(Method::GET, url)).await;
                assert_eq!(response.status(), StatusCode::OK, "{url}");
                files.push(response.bytes().await.unwrap().to_vec());
            }
            assert_eq!(files.len(), 2);
            told.insert(id, (run, files));
        }
        let Some(cursor) = page["next_cursor"].as_str() else { return told };
        after = format!("&after={cursor}");
    }
}

/// Without what is being written: `name#1` becomes `name` when it is whole.
fn copy_blobs(from: &Path, to: &Path) {
    let archive = to.join("blobs.tar");
    let options = ["--exclude=*#*", "-C", text(from), "-cf", text(&archive), "blobs"];
    let packed = command("tar", &options).status().unwrap().code();
    assert!(packed.is_some_and(|code| code <= 1), "1: a folder has got new files meanwhile");
    run("tar", &["-C", text(to), "-xf", text(&archive)]);
    std::fs::remove_file(archive).unwrap();
}

fn run(program: &str, options: &[&str]) {
    let output = command(program, options).output().expect(program);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {said}");
}

fn command(program: &str, options: &[&str]) -> Command {
    #[expect(clippy::disallowed_methods, reason = "backups are made by programs")]
    let mut command = Command::new(program);
    command.args(options);
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
