//! A server's process: started, heard, measured, ended with all that belongs to it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::{oneshot, watch};

use super::cage::{self, Cage};
use crate::domain::reason::Reason;

/// What a process says on stderr, of which the end is kept.
const MAX_WORDS_BYTES: usize = 64 << 10;
const MAX_LINE_BYTES: u64 = 4096;
/// Starts that wait for the one thread.
const MAX_STARTS: usize = 64;
/// A process that was killed is gone at once, unless the host's kernel is busy with it.
const GONE_LIMIT: Duration = Duration::from_secs(5);

/// What is started.
pub(super) struct Plan {
    pub(super) cage: Cage,
    /// All of its environment.
    pub(super) env: BTreeMap<String, String>,
}

/// A process with the pipes that it speaks by.
pub(super) struct Started {
    pub(super) process: Process,
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
}

/// A server's process, ended when dropped.
pub(super) struct Process {
    /// It leads a group of its own.
    group: Pid,
    /// Closed once it has ended and was reaped.
    ended: watch::Receiver<bool>,
    heard: watch::Receiver<bool>,
    words: Arc<Words>,
    is_caged: bool,
}

/// What a process says besides the protocol: bounded, and never believed.
#[derive(Default)]
pub(super) struct Words(Mutex<Said>);

#[derive(Default)]
struct Said {
    lines: VecDeque<String>,
    bytes: usize,
    /// Its first line, which our cage writes.
    first: Option<String>,
}

impl Process {
    /// Starts it. It ends with the service, however that ends.
    pub(super) async fn start(plan: Plan) -> io::Result<Started> {
        let is_caged = plan.cage.walls.is_some();
        let mut child = spawned(plan).await?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let group = pid.ok_or_else(|| io::Error::other("it has ended"))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(io::Error::other("it has no pipes"));
        };
        let words = Arc::new(Words::default());
        let (hearing, heard) = watch::channel(false);
        let listening = Arc::clone(&words).listen(stderr);
        tokio::spawn(async move {
            listening.await;
            let _ = hearing.send(true);
        });
        let (ending, ended) = watch::channel(false);
        tokio::spawn(async move {
            let _ = child.wait().await;
            kill(group); // what it has left behind
            let _ = ending.send(true);
        });
        Ok(Started { process: Self { group, ended, heard, words, is_caged }, stdin, stdout })
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Ends it with all its children, and waits until it is gone.
    pub(super) async fn end(&self) {
        self.kill();
        if !self.ends_within(GONE_LIMIT).await {
            kill(self.group); // a keeper that does not keep
            if !self.ends_within(GONE_LIMIT).await {
                tracing::error!(pid = self.group.as_raw_nonzero().get(), "a process does not end");
            }
        }
    }

    /// Waits until all that it said is heard: it stands in a pipe when it has ended. What it has left
    /// behind may hold that pipe.
    pub(super) async fn heard_within(&self, limit: Duration) {
        let mut heard = self.heard.clone();
        let _ = tokio::time::timeout(limit, heard.wait_for(|heard| *heard)).await;
    }

    /// Waits for its end. False when it goes on.
    pub(super) async fn ends_within(&self, limit: Duration) -> bool {
        let mut ended = self.ended.clone();
        tokio::time::timeout(limit, ended.wait_for(|ended| *ended)).await.is_ok()
    }

    pub(super) fn kill(&self) {
        if self.has_ended() {
            return;
        }
        if self.is_caged {
            kill(self.group);
            let _ = rustix::process::kill_process(self.group, Signal::KILL); // one that has left it
        } else {
            // its keeper ends what has left the group too
            let _ = rustix::process::kill_process(self.group, Signal::TERM);
        }
    }

    /// Memory that it alone has, in bytes; for a command, of its whole group.
    pub(super) async fn memory_bytes(&self) -> u64 {
        let group = self.group.as_raw_nonzero().get();
        if self.is_caged {
            return private_bytes(group);
        }
        let all = tokio::task::spawn_blocking(move || {
            members(group).into_iter().map(private_bytes).sum()
        });
        all.await.unwrap_or(0)
    }

    /// Threads of a process in a cage, where nothing else bounds them.
    pub(super) fn threads(&self) -> u64 {
        let pid = self.group.as_raw_nonzero().get();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status_number(&status, "Threads:").unwrap_or(0)
    }

    /// What a process in a cage holds open that has no name any more.
    pub(super) async fn unnamed_bytes(&self) -> u64 {
        let pid = self.group.as_raw_nonzero().get();
        tokio::task::spawn_blocking(move || unnamed_bytes(pid)).await.unwrap_or(0)
    }

    pub(super) fn words(&self) -> &Arc<Words> {
        &self.words
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Words {
    async fn listen(self: Arc<Self>, stderr: ChildStderr) {
        let mut reader = BufReader::new(stderr);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => self.add(String::from_utf8_lossy(&line).trim_end()),
            }
        }
    }

    /// Keeps a line, and lets older ones go.
    pub(super) fn add(&self, line: &str) {
        let mut said = self.0.lock().expect("no panic while the words are held");
        if said.first.is_none() {
            said.first = Some(line.to_owned());
            if line.parse::<u32>().is_ok() {
                return; // our cage's, about itself
            }
        }
        said.bytes += line.len();
        said.lines.push_back(line.to_owned());
        while said.bytes > MAX_WORDS_BYTES || said.lines.len() > 1000 {
            let Some(oldest) = said.lines.pop_front() else { break };
            said.bytes -= oldest.len();
        }
    }

    /// The last line, short.
    pub(super) fn last(&self) -> Reason {
        let said = self.0.lock().expect("no panic while the words are held");
        let last = said.lines.iter().rev().find(|line| !line.trim().is_empty());
        last.map(|line| Reason::new(line)).unwrap_or_default()
    }

    /// The number that our cage says before anything else can be said.
    pub(super) fn landlock_abi(&self) -> u32 {
        let said = self.0.lock().expect("no panic while the words are held");
        said.first.as_deref().and_then(|line| line.parse().ok()).unwrap_or(0)
    }
}

/// Asks for a start.
struct Start {
    plan: Plan,
    runtime: tokio::runtime::Handle,
    answer: oneshot::Sender<io::Result<Child>>,
}

/// Starts by the one thread that lives as long as the service: a child is told of the end of the
/// thread that has started it, and threads of the runtime come and go.
async fn spawned(plan: Plan) -> io::Result<Child> {
    static STARTER: OnceLock<mpsc::SyncSender<Start>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, receiver) = mpsc::sync_channel::<Start>(MAX_STARTS);
        std::thread::spawn(move || {
            for Start { plan, runtime, answer } in receiver {
                let _entered = runtime.enter();
                // a panic must not end this thread: all children would end with it
                let started = std::panic::catch_unwind(AssertUnwindSafe(|| spawn(plan)));
                let started = started.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
                let _ = answer.send(started); // nobody waits any more: it ends when dropped
            }
        });
        sender
    });
    let (answer, answered) = oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    let is_busy = |_| io::Error::from(io::ErrorKind::WouldBlock);
    starter.try_send(Start { plan, runtime, answer }).map_err(is_busy)?;
    answered.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

#[expect(clippy::disallowed_methods, reason = "the server is a process of the sandbox")]
fn spawn(plan: Plan) -> io::Result<Child> {
    let Plan { cage, env } = plan;
    Command::new("/proc/self/exe")
        .arg(cage::MODE)
        .arg(serde_json::to_string(&cage)?)
        .env_clear()
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

fn kill(group: Pid) {
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
}

/// What this process has in memory besides the files that it shares with others.
fn private_bytes(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kilobytes = |name| status_number(&status, name).unwrap_or(0);
    (kilobytes("RssAnon:") + kilobytes("RssShmem:")) * 1024
}

/// A number of /proc/PID/status.
fn status_number(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What a process holds open that has no name any more, in bytes.
fn unnamed_bytes(pid: i32) -> u64 {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| std::fs::metadata(entry.path()).ok());
    files
        .filter(|about| about.is_file() && about.nlink() == 0)
        .map(|about| about.blocks() * 512)
        .sum()
}

/// The processes of a group.
fn members(group: i32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_member = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // behind the program's name, which may hold anything: state, parent, group
        let found = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(2));
        found.and_then(|found| found.parse().ok()) == Some(group)
    };
    pids.filter(is_member).collect()
}

/// What a command has of the service's environment: where programs are found, and a home. That of
/// the service's user where there is one, and not that of root, who may have started it.
pub(super) fn path_and_home(otherwise: &Path) -> BTreeMap<String, String> {
    let named = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
    let user = rustix::process::geteuid().as_raw();
    let is_own = |home: &String| std::fs::metadata(home).is_ok_and(|about| about.uid() == user);
    let home = named("HOME").filter(|(_, home)| is_own(home));
    let home =
        home.unwrap_or_else(|| ("HOME".to_owned(), otherwise.to_string_lossy().into_owned()));
    let no_color = ("NO_COLOR".to_owned(), "1".to_owned());
    named("PATH").into_iter().chain([home, no_color]).collect()
}

/// A cage for this process's child.
pub(super) fn cage(words: Vec<String>, folder: Option<PathBuf>) -> Cage {
    Cage { parent: std::process::id() as i32, words, folder, file_bytes: None, walls: None }
}
