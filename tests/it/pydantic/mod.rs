//! The provider `pydantic`: Python in WebAssembly, by our server and by the genuine upstream one.

mod direct;
mod fakes;
mod guest;
mod leftovers;
mod protocol;
mod reports;
mod rows;
mod tools;
mod upstream;
mod walls;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::processes::descendants;
use crate::support::server::Server;
use crate::support::{Session, must_come};

/// What came of a cell: status, exit code, kind of failure, and whether its variables are gone.
fn came(execution: &Value) -> Value {
    json!([
        execution["status"],
        execution["exit_code"],
        execution["failure"]["kind"],
        execution["state_lost"]
    ])
}

/// An ordinary error of the code's own, after which all is as before.
fn own_error() -> Value {
    json!(["error", 1, null, false])
}

/// The name of the error that a cell ended with.
fn name(execution: &Value) -> &str {
    execution["error_detail"]["name"].as_str().unwrap_or_default()
}

async fn sandbox_of(session: &Session<'_>) -> String {
    let (_, told) = session.caller.get(&session.path("")).await;
    told["sandbox_id"].as_str().unwrap().to_owned()
}

/// The process that runs a session's code, once it is there.
async fn deno_of(server: &Server, session: &Session<'_>) -> u32 {
    let folder = folder_of(server, session).await;
    let option = format!("--files\0{}\0", folder.display());
    let is_it = |pid: &u32| command_line(*pid).contains(&option);
    must_come(async {
        loop {
            if let Some(pid) = descendants(server.pid()).into_iter().find(is_it) {
                return pid;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// The processes below a service that run Python in WebAssembly, ours and upstream's.
fn denos(server: &Server) -> Vec<u32> {
    let is_it = |pid: &u32| command_line(*pid).contains("/deno\0run\0");
    descendants(server.pid()).into_iter().filter(is_it).collect()
}

/// A process's words, each with a zero at its end.
fn command_line(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// The folder of the host that a session's code sees as `/files`.
async fn folder_of(server: &Server, session: &Session<'_>) -> PathBuf {
    let sandbox = sandbox_of(session).await;
    let entries = std::fs::read_dir(server.data_dir.join("pydantic")).unwrap();
    let folders = entries.map(|entry| entry.unwrap().path().join("files").join(&sandbox));
    folders.into_iter().find(|folder| folder.is_dir()).expect("the sandbox has a folder")
}

/// A number of a process's status, such as VmHWM in kilobytes.
fn status_of(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap()
}
