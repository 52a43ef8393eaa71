//! What a session may take, and what comes of taking more.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::server::{Server, caller, restricted, shared};
use crate::support::{Caller, Session, problem};

/// Takes memory in steps until something stops it.
const HOG: &str = "b = []\nwhile True: b.append(bytearray(10 ** 7))";
/// Eight processes that take 100 MB each and wait.
const MANY_HOGS: &str = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        b = bytearray(os.urandom(1000)) * 100_000\n        time.sleep(60)\n        os._exit(0)\ntime.sleep(60)";

/// Who is to blame stands in the answer: the limit and nothing else.
fn is_out_of_memory(execution: &Value) -> bool {
    execution["failure"]["kind"] == "oom" || execution["error_detail"]["name"] == "MemoryError"
}

async fn limited(caller: &Caller, limits: Value) -> Session<'_> {
    caller.session_with(json!({"limits": limits})).await
}

async fn isolation(caller: &Caller) -> Value {
    caller.get("/v1/providers").await.1["data"][0]["isolation"].clone()
}

#[tokio::test]
async fn a_session_that_takes_too_much_memory_is_told_so_and_others_go_on() {
    for server in [shared(), restricted()] {
        let caller = server.caller();
        let (hog, other) = (caller.session().await, caller.session().await);
        other.exec("x = 41").await;
        hog.exec("open('kept.txt', 'w').write('kept')").await;
        let taken = hog.exec(HOG).await;
        assert!(is_out_of_memory(&taken) && taken["status"] == "error", "{taken}");
        if isolation(&caller).await["memory_limit"] != "rlimit" {
            assert_eq!(
                (&taken["failure"]["kind"], &taken["exit_code"], &taken["state_lost"]),
                (&json!("oom"), &json!(137), &json!(true)),
                "{taken}"
            );
            assert_eq!(taken["error"], "the session's memory of 512 MiB was used up");
        }
        assert_eq!(hog.text("open('kept.txt').read()").await, "'kept'");
        assert_eq!(other.text("x + 1").await, "42");
        assert_eq!(caller.get("/healthz").await.0, 200);
    }
}

#[tokio::test]
async fn the_memory_of_many_processes_counts_together() {
    for server in [shared(), restricted()] {
        let caller = server.caller();
        let session = caller.session().await;
        let taken = session.exec_with(json!({"code": MANY_HOGS, "timeout_seconds": 20})).await;
        assert_eq!(
            (&taken["failure"]["kind"], taken["status"] == "success"),
            (&json!("oom"), false),
            "{taken}"
        );
        assert_eq!(session.text("1 + 1").await, "2");
    }
}

#[tokio::test]
async fn without_cgroups_a_look_finds_what_processes_take_together() {
    let server = Server::start(&[("LOCAL_CGROUPS", "false")]);
    let caller = server.caller();
    let found = isolation(&caller).await;
    assert_eq!((&found["memory_limit"], &found["cpu_limit"]), (&json!("rlimit"), &json!("nice")));
    let session = caller.session().await;
    let taken = session.exec_with(json!({"code": MANY_HOGS, "timeout_seconds": 20})).await;
    assert_eq!(
        (&taken["status"], &taken["failure"]["kind"]),
        (&json!("error"), &json!("oom")),
        "{taken}"
    );
    let alone = session.exec("b = bytearray(600 << 20)").await;
    assert_eq!(
        (&alone["error_detail"]["name"], &alone["state_lost"]),
        (&json!("MemoryError"), &json!(false)),
        "one process meets its own limit, and goes on: {alone}"
    );
    let files = "f = open('/tmp/x', 'wb')\nfor _ in range(200): f.write(bytes(1 << 20))\nf.close(); 'written'";
    assert_eq!(session.text(files).await, "'written'");
}

#[tokio::test]
async fn a_child_that_the_kernel_killed_for_memory_leaves_the_session_alive() {
    let caller = caller();
    if isolation(&caller).await["memory_limit"] == "rlimit" {
        return; // there the look ends the whole session
    }
    let session = caller.session().await;
    session.exec("x = 41").await;
    let code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'b = []\\nwhile True: b.append(bytearray(10 ** 7))']).returncode";
    assert_eq!(session.text(code).await, "-9");
    let path = session.path("/shell");
    let shell = json!({"command": "python -c 'b = [bytearray(10 ** 7) for _ in range(100)]'"});
    let (_, shell) = caller.post(&path, shell).await;
    assert_eq!(
        (&shell["exit_code"], &shell["failure"]["kind"], &shell["state_lost"]),
        (&json!(137), &json!("oom"), &json!(false)),
        "{shell}"
    );
    assert_eq!(session.text("x + 1").await, "42");
}

#[tokio::test]
async fn buffers_of_sockets_and_pipes_count_as_memory_where_a_cgroup_counts() {
    let caller = caller();
    if isolation(&caller).await["memory_limit"] == "rlimit" {
        return; // told as missing there
    }
    let session = limited(&caller, json!({"memory_bytes": 64 << 20})).await;
    let code = "import socket\nheld = []\nfor _ in range(480):\n    pair = socket.socketpair()\n    for end in pair:\n        end.setblocking(False)\n        try:\n            while True: end.send(bytes(65536))\n        except BlockingIOError: pass\n    held.append(pair)";
    let taken = session.exec(code).await;
    assert_eq!(taken["failure"]["kind"], "oom", "{taken}");
    assert_eq!(session.text("1 + 1").await, "2");
}

#[tokio::test]
async fn every_limit_can_be_lowered_for_a_session_and_holds() {
    let caller = caller();
    let limits = json!({"memory_bytes": 256 << 20, "disk_bytes": 8 << 20, "inodes": 64,
        "file_bytes": 1 << 20, "processes": 8, "open_files": 64, "cpu_percent": 50,
        "output_bytes": 2048});
    let session = limited(&caller, limits.clone()).await;
    assert_eq!(caller.get(&session.path("")).await.1["limits"], limits);
    let stops = "import errno, os\ndef stops(step):\n    n = 0\n    try:\n        while n < 10_000:\n            step(n); n += 1\n    except OSError as error: return n, errno.errorcode[error.errno]\n    return n, None";
    session.exec(stops).await;
    let one_file = "f = open('big', 'wb', 0)\nr = stops(lambda n: f.write(bytes(1 << 16))); f.close(); os.remove('big'); r";
    assert_eq!(session.text(one_file).await, "(16, 'EFBIG')");
    let full = "def write(n):\n    with open(f'part{n}', 'wb') as f: f.write(bytes(1 << 20))\nr = stops(write)\nfor n in range(9):\n    if os.path.exists(f'part{n}'): os.remove(f'part{n}')\nr";
    assert_eq!(session.text(full).await, "(8, 'ENOSPC')");
    let many = "(lambda r: 40 < r[0] < 64 and r[1])(stops(lambda n: open(f'f{n}', 'w').close()))";
    assert_eq!(session.text(many).await, "'ENOSPC'");
    let open = "held = []\nr = stops(lambda n: held.append(os.open('/dev/null', 0)))\n[os.close(f) for f in held]\n40 < r[0] < 64 and r[1]";
    assert_eq!(session.text(open).await, "'EMFILE'");
    let forks = "import time\ndef fork(n):\n    if os.fork() == 0: time.sleep(60)\nr = stops(fork)\nr[0] < 8 and r[1]";
    assert_eq!(session.text(forks).await, "'EAGAIN'");
    let session = limited(&caller, limits).await;
    let printed = session.exec("print('x' * 100_000)").await;
    assert_eq!((&printed["truncated"], &printed["stdout_bytes"]), (&json!(true), &json!(100_001)));
    assert!(printed["stdout"].as_str().unwrap().len() < 2300, "{printed}");
    let taken = session.exec("b = bytearray(os.urandom(100)) * 4_000_000").await;
    assert!(taken["status"] == "error", "{taken}");
}

#[tokio::test]
async fn a_limit_out_of_its_range_is_a_problem_that_names_it() {
    let caller = caller();
    for limit in [
        "memory_bytes",
        "disk_bytes",
        "inodes",
        "file_bytes",
        "processes",
        "open_files",
        "cpu_percent",
        "output_bytes",
    ] {
        for value in [0, 1_u64 << 50] {
            let refused = caller.post("/v1/sessions", json!({"limits": {limit: value}})).await;
            assert_eq!(problem(&refused), (422, "limit_out_of_range".into()), "{limit}");
            let pointer = &refused.1["errors"][0]["pointer"];
            assert_eq!(pointer, &json!(format!("/limits/{limit}")));
        }
    }
}

#[tokio::test]
async fn a_session_gets_its_share_of_the_processors_where_a_cgroup_holds_it() {
    let caller = caller();
    if isolation(&caller).await["cpu_limit"] == "nice" {
        return; // told as missing there
    }
    let session = limited(&caller, json!({"cpu_percent": 20})).await;
    let code = "import time\nstart, used = time.monotonic(), time.process_time()\nwhile time.monotonic() - start < 2: pass\nprint((time.process_time() - used) / (time.monotonic() - start))";
    let share: f64 = session.text(code).await.trim().parse().unwrap();
    assert!(share < 0.3, "{share} of a processor instead of 0.2");
}

#[tokio::test]
async fn sessions_stand_back_behind_the_service() {
    let caller = caller();
    let session = caller.session().await;
    assert_eq!(session.text("import os; os.nice(0) >= 5").await, "True");
}

#[tokio::test]
async fn restricted_sessions_are_ended_when_their_files_or_processes_are_too_many() {
    let caller = restricted().caller();
    let session = limited(&caller, json!({"disk_bytes": 8 << 20})).await;
    let code = "import time\nfor n in range(100):\n    with open(f'part{n}', 'wb') as f: f.write(bytes(1 << 20))\n    time.sleep(0.1)";
    let started = Instant::now();
    let full = session.exec(code).await;
    assert_eq!(
        (&full["status"], &full["failure"]["kind"]),
        (&json!("error"), &json!("limit")),
        "{full} after {:?}",
        started.elapsed()
    );
    let session = limited(&caller, json!({"processes": 8})).await;
    let code = "import os, time\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(60)\ntime.sleep(60)";
    let crowded = session.exec_with(json!({"code": code, "timeout_seconds": 20})).await;
    assert_ne!(crowded["status"], "success", "{crowded}");
    assert_eq!(session.text("1 + 1").await, "2");
}
