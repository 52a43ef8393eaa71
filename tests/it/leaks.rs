//! Sessions that are made, used and ended in every way leave nothing behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::json;

use crate::support::processes::descendants;
use crate::support::server::{Server, open_folder};
use crate::support::{Caller, Session};

/// Sessions of the short run in CI; `make soak` makes 2,000.
const SESSIONS: usize = 60;
const AT_ONCE: usize = 6;
const SETTLE_LIMIT: Duration = Duration::from_secs(30);
/// What allocators and caches may keep of a run of any length.
const MAY_GROW: u64 = 64 << 20;

/// What a session does before it is deleted.
const USES: [&str; 12] = [
    "x = 1",
    "import os; os._exit(3)",
    "import ctypes; ctypes.string_at(0)",
    "import os; os.kill(os.getpid(), 9)",
    "import os; os.write(950, b'\\xff' * 100)",
    "import os; os.close(950)",
    "import subprocess\nfor _ in range(3): subprocess.Popen(['setsid', 'sleep', '300'])",
    "import os, time\nfor _ in range(3):\n    if os.fork() == 0: time.sleep(300)",
    "import threading, time\nfor _ in range(5): threading.Thread(target=time.sleep, args=(300,)).start()",
    "open('big', 'wb').write(bytes(20 << 20)); open('/tmp/big', 'wb').write(bytes(20 << 20))",
    "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    "b = []\nwhile True: b.append(bytearray(10 ** 7))",
];

/// What is there besides the service itself.
#[derive(Debug)]
struct Counts {
    processes: usize,
    /// Of service, warden and zygote, by the name of what they are open on.
    descriptors: BTreeMap<String, usize>,
    mounts: usize,
    cgroups: usize,
    folders: usize,
}

impl Counts {
    fn besides_descriptors(&self) -> [usize; 4] {
        [self.processes, self.mounts, self.cgroups, self.folders]
    }
}

fn counts(server: &Server) -> Counts {
    let below = descendants(server.pid());
    let mut descriptors = BTreeMap::new();
    for pid in below.iter().copied().chain([server.pid()]) {
        for open in entries(&PathBuf::from(format!("/proc/{pid}/fd"))) {
            let kind = fs::read_link(&open).unwrap_or_default().to_string_lossy().into_owned();
            let mut kind = kind.split([':', '(']).next().unwrap_or_default().trim().to_owned();
            if kind.starts_with("/sys/fs/cgroup") {
                "cgroup".clone_into(&mut kind); // each is another one
            }
            *descriptors.entry(kind).or_insert(0) += 1;
        }
    }
    let mounts =
        below.iter().filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/mounts")).ok());
    Counts {
        processes: below.len(),
        descriptors,
        mounts: mounts.map(|mounts| mounts.lines().count()).sum(),
        cgroups: cgroups_of(server.pid()),
        folders: entries(&server.data_dir.join("rooms")).len(),
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Cgroups of sessions, wherever the service has made its own.
fn cgroups_of(pid: u32) -> usize {
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    let mut found = 0;
    while let Some(folder) = open.pop() {
        for entry in entries(&folder).into_iter().filter(|entry| entry.is_dir()) {
            if entry.ends_with(format!("interpreterd/{pid}")) {
                found += entries(&entry).iter().filter(|entry| entry.is_dir()).count();
            } else {
                open.push(entry);
            }
        }
    }
    found
}

fn resident_bytes(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Makes a session, uses it, and ends it in one of the ways there are.
async fn one(caller: &Caller, number: usize) {
    let limits = json!({"limits": {"memory_bytes": 96 << 20}});
    let session = caller.session_with(limits).await;
    let code = USES[number % USES.len()];
    let body = json!({"code": code, "timeout_seconds": 1.5});
    match number / USES.len() % 3 {
        0 => {
            session.exec_with(body).await;
            // programs of the cell before may still complain
            let text = session.text("1 + 1").await;
            assert!(text.ends_with('2'), "{text} after {code}");
        }
        1 => {
            session.put("a.txt", "x").await;
            session.exec_with(body).await;
        }
        _ => delete_while_busy(caller, &session, &body).await,
    }
    assert_eq!(session.delete().await, 204);
}

async fn delete_while_busy(caller: &Caller, session: &Session<'_>, body: &serde_json::Value) {
    let path = session.path("/exec");
    let (_, status) = tokio::join!(caller.post(&path, body.clone()), session.delete());
    assert_eq!(status, 204);
}

async fn many(caller: &Caller, count: usize) {
    futures::stream::iter(0..count)
        .for_each_concurrent(AT_ONCE, |number| one(caller, number))
        .await;
}

/// Ends come a moment after the answer: waits for the counts of before.
fn settles(server: &Server, before: &Counts) {
    let started = Instant::now();
    loop {
        let now = counts(server);
        let open = now_within(&now.descriptors, &before.descriptors);
        if now.besides_descriptors() == before.besides_descriptors() && open {
            return;
        }
        assert!(
            started.elapsed() < SETTLE_LIMIT,
            "left behind:\nbefore {before:?}\nnow    {now:?}"
        );
        std::thread::yield_now();
    }
}

/// A few may be more, however many sessions there were: idle connections of the caller, the store's
/// pool, and the two user namespaces of each slot, of which a session and its successor need one at
/// a time.
fn now_within(now: &BTreeMap<String, usize>, before: &BTreeMap<String, usize>) -> bool {
    now.iter().all(|(kind, count)| match kind.as_str() {
        "user" => *count <= 2 * 2 * AT_ONCE + 2,
        store if store.contains("interpreterd.db") => *count <= 16,
        "socket" => *count <= before.get(kind).copied().unwrap_or(0) + 2 * AT_ONCE,
        _ => *count <= before.get(kind).copied().unwrap_or(0),
    })
}

async fn nothing_is_left(settings: &[(&str, &str)]) {
    let count = std::env::var("INTERPRETERD_TEST_SESSIONS").ok();
    let count = count.and_then(|count| count.parse().ok()).unwrap_or(SESSIONS);
    let settings = [&[("LOCAL_POOL", "0")], settings].concat();
    let server = Server::start(&settings);
    let caller = server.caller();
    many(&caller, AT_ONCE).await; // what is only made once is there now
    let started = Instant::now();
    let (before, zygote) = (counts(&server), descendants(server.pid()).last().copied());
    let memory = [Some(server.pid()), zygote].map(|pid| pid.map_or(0, resident_bytes));
    many(&caller, count).await;
    settles(&server, &before);
    let after = [Some(server.pid()), zygote].map(|pid| pid.map_or(0, resident_bytes));
    println!(
        "{count} sessions in {:?}; before {before:?}, the same after; resident memory of service and zygote {memory:?}, then {after:?}",
        started.elapsed()
    );
    for (before, after) in memory.into_iter().zip(after) {
        assert!(after < before + MAY_GROW, "memory grew from {before} to {after} bytes");
    }
}

#[tokio::test]
async fn sessions_ended_in_every_way_leave_nothing() {
    nothing_is_left(&[]).await;
}

#[tokio::test]
async fn restricted_sessions_ended_in_every_way_leave_nothing() {
    nothing_is_left(&[("LOCAL_LEVELS", "restricted")]).await;
}

#[tokio::test]
async fn sessions_of_the_pool_leave_nothing() {
    let server = Server::start(&[("LOCAL_POOL", "2")]);
    let caller = server.caller();
    let taken = async || {
        caller.full_pool().await;
        let session = caller.session().await;
        assert_eq!(session.text("6 * 7").await, "42");
        assert_eq!(session.delete().await, 204);
    };
    taken().await; // what is only made once is there now
    caller.full_pool().await;
    let before = counts(&server);
    for _ in 0..30 {
        taken().await;
    }
    caller.full_pool().await;
    settles(&server, &before);
}

#[tokio::test]
async fn fifty_sessions_are_made_at_once() {
    let server = Server::start(&[]);
    let caller = server.caller();
    let sessions = futures::future::join_all((0..50).map(|_| caller.session())).await;
    let answers = futures::future::join_all(
        sessions
            .iter()
            .enumerate()
            .map(|(n, session)| async move { session.text(&format!("{n} * 2")).await }),
    )
    .await;
    let expected: Vec<_> = (0..50).map(|n| (n * 2).to_string()).collect();
    assert_eq!(answers, expected);
}

#[tokio::test]
async fn a_zygote_or_a_warden_that_is_killed_loses_state_and_the_provider_recovers() {
    for victim in 0..2 {
        let folder = open_folder();
        let server = Server::start_in(&folder.path().join("data"), &[]);
        let caller = server.caller();
        let session = caller.session().await;
        session.exec("x = 1\nopen('a.txt', 'w').write('kept')").await;
        let path = session.path("/exec");
        let running = caller.post(&path, json!({"code": "open('begun', 'w').close()\nimport time; time.sleep(300)", "timeout_seconds": 400}));
        let killing = async {
            while session.download("begun").await.status() != 200 {
                tokio::task::yield_now().await;
            }
            // the warden's first process, or its zygote
            let pids = descendants(server.pid());
            let pid = pids[if victim == 0 { 0 } else { 2 }];
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        };
        let ((status, execution), ()) = tokio::join!(running, killing);
        assert_eq!(status, 200);
        assert_eq!(execution["state_lost"], true, "{execution}");
        assert!(
            execution["status"] == "unknown" || execution["failure"]["kind"] == "killed",
            "{execution}"
        );
        let next = session.exec("'x' in globals(), open('a.txt').read()").await;
        assert_eq!(next["text"], "(False, 'kept')", "{next}");
        assert_eq!(caller.session().await.text("1 + 1").await, "2");
    }
}
