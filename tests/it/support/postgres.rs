//! A throwaway Postgres: one that tests share, and private ones that go down.

use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::processes::descendants;

/// A server that is there already, which tests may make databases in.
const URL: &str = "INTERPRETERD_TEST_POSTGRES_URL";
/// Where no Postgres can be: the tests that need it say that they are left out.
const SKIP: &str = "INTERPRETERD_TEST_SKIP_POSTGRES";
const PREFIX: &str = "interpreterd-postgres-";
/// What its processes share lies in its folder, and goes with it.
const FILES: &str = "dynamic_shared_memory_type=mmap";
/// Who it runs as where the tests are root's: Postgres refuses to be.
const NOBODY: u32 = 65534;
const LIMIT: Duration = Duration::from_secs(60);
/// A younger folder may belong to tests that are just starting.
const STALE: Duration = Duration::from_secs(60);

/// A server of its own, whose processes a test may stop, ended and removed when dropped.
pub struct Server {
    programs: PathBuf,
    folder: tempfile::TempDir,
    /// Tells others that the folder is in use, for as long as these tests live.
    _lock: File,
    durable: bool,
    running: Mutex<Option<Running>>,
}

/// A server that runs. The thread that started it lives as long: it is killed with that thread.
struct Running {
    pid: Pid,
    ended: Receiver<()>,
}

/// How a server goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// As in a crash: nothing is said to anybody, and it recovers at its next start.
    Immediate,
    /// As an administrator does it: connections are closed, all is written.
    Fast,
}

/// A database of its own in the server that tests share, removed when dropped.
pub struct Database {
    admin: String,
    name: String,
}

impl Database {
    /// A new one, or None where there is no Postgres and that was said on purpose.
    pub fn new() -> Option<Self> {
        if skipped() {
            return None;
        }
        let admin = std::env::var(URL).unwrap_or_else(|_| shared().url());
        let name = format!("t_{}", interpreterd::domain::id::RunId::new().uuid().simple());
        execute(&admin, &format!("create database {name}"));
        Some(Self { admin, name })
    }

    /// What connects to it, as `INTERPRETERD_DATABASE_URL` wants it.
    pub fn url(&self) -> String {
        let (before, options) = self.admin.split_once('?').unwrap_or((&self.admin, ""));
        let authority = before.find("://").map_or(0, |at| at + 3);
        let end = before[authority..].find('/').map_or(before.len(), |at| authority + at);
        format!("{}/{}?{options}", &before[..end], self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        execute(&self.admin, &format!("drop database if exists {} with (force)", self.name));
    }
}

impl Server {
    /// Starts one whose data survives [`Stop::Immediate`]; None where that is left out on purpose.
    pub fn start_private() -> Option<Self> {
        (!skipped()).then(|| Self::initialize(true))
    }

    fn initialize(durable: bool) -> Self {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir().unwrap();
        // the service is another user, and has to reach the socket
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let lock = File::create(folder.path().join("lock")).unwrap();
        lock.lock().unwrap();
        if rustix::process::geteuid().is_root() {
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let (programs, running) = (programs(), Mutex::new(None));
        let server = Self { programs, folder, _lock: lock, durable, running };
        let mut command = server.command(&nameless(), "initdb");
        command.args(["-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C.UTF-8"]);
        let made = command.args(["--wal-segsize=1", "-D"]).arg(server.data()).output().unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        server.start();
        server
    }

    /// What connects to it.
    pub fn url(&self) -> String {
        format!("postgres://postgres@localhost/postgres?host={}", self.folder.path().display())
    }

    /// Starts it, on the data that there is, and waits until it takes connections.
    pub fn start(&self) {
        let mut running = self.running.lock().unwrap();
        assert!(running.is_none(), "it runs already");
        let durable = if self.durable { "on" } else { "off" };
        let mut command = self.command(&[], "postgres");
        command.arg("-D").arg(self.data()).arg("-c").arg("listen_addresses=").arg("-c");
        command.arg(format!("unix_socket_directories={}", self.folder.path().display()));
        for option in ["fsync=off", "full_page_writes=off", "max_connections=200", FILES] {
            command.args(["-c", option]);
        }
        command.args(["-c", "shared_buffers=32MB", "-c"]);
        command.arg(format!("synchronous_commit={durable}"));
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let started = Running::start(command);
        let deadline = Instant::now() + LIMIT;
        while !self.is_ready(started.pid) {
            let ended = started.ended.try_recv().is_ok();
            let log = || std::fs::read_to_string(self.log()).unwrap_or_default();
            assert!(!ended && Instant::now() < deadline, "postgres does not start:\n{}", log());
            std::thread::yield_now();
        }
        *running = Some(started);
    }

    /// Stops it and waits until it is gone.
    pub fn stop(&self, how: Stop) {
        let Some(running) = self.running.lock().unwrap().take() else { return };
        let signal = match how {
            Stop::Immediate => Signal::QUIT,
            Stop::Fast => Signal::INT,
        };
        kill_process(running.pid, signal).unwrap();
        running.ended.recv_timeout(LIMIT).expect("postgres ends");
    }

    /// Stops all of its processes where they are: connections stay open and nobody answers.
    pub fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Lets them go on.
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    fn signal_all(&self, signal: Signal) {
        let running = self.running.lock().unwrap();
        let Some(running) = running.as_ref() else { return };
        // the first makes the others: once it stands still, no more come
        let _ = kill_process(running.pid, signal);
        for pid in descendants(running.pid.as_raw_nonzero().get().cast_unsigned()) {
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
        }
    }

    /// Line 8 of its file says how far it is.
    fn is_ready(&self, pid: Pid) -> bool {
        let told = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let lines: Vec<&str> = told.lines().map(str::trim).collect();
        let of_it = lines.first().is_some_and(|line| *line == pid.as_raw_nonzero().to_string());
        of_it && lines.get(7) == Some(&"ready")
    }

    /// One of its programs, as the user that it has to be, killed with the thread that starts it.
    fn command(&self, through: &[&str], program: &str) -> Command {
        #[expect(clippy::disallowed_methods, reason = "Postgres is a program")]
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "QUIT"]);
        if rustix::process::geteuid().is_root() {
            let id = NOBODY.to_string();
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
        }
        command.arg("--").args(through).arg(self.programs.join(program));
        command.current_dir(self.folder.path());
        command
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.resume();
        self.stop(Stop::Immediate);
    }
}

impl Running {
    fn start(mut command: Command) -> Self {
        let ((tell_pid, pid), (tell_end, ended)) = (channel(), channel());
        std::thread::spawn(move || {
            let mut child = command.spawn().expect("setpriv is there");
            tell_pid.send(child.id()).unwrap();
            let _ = child.wait();
            let _ = tell_end.send(());
        });
        let pid = pid.recv().expect("it is started");
        Self { pid: Pid::from_raw(pid.cast_signed()).unwrap(), ended }
    }
}

/// `initdb` wants a user who has a name: one who has none is called nobody in a namespace.
fn nameless() -> Vec<&'static str> {
    let user = rustix::process::geteuid();
    let names = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_user = |line: &str| line.split(':').nth(2) == Some(user.as_raw().to_string().as_str());
    if user.is_root() || names.lines().any(of_user) {
        return Vec::new();
    }
    vec!["unshare", "--user", "--map-user=65534", "--map-group=65534"]
}

/// The server that tests share: it ends with them, and its folder is swept by those who come later.
fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| {
        sweep();
        Server::initialize(false)
    })
}

/// Removes folders of tests that have ended.
fn sweep() {
    for entry in std::fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        let stale = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry
                .metadata()
                .and_then(|about| about.modified())
                .is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > STALE));
        let Some(Ok(lock)) = stale.then(|| File::open(entry.path().join("lock"))) else { continue };
        if lock.try_lock().is_ok() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Said where it is seen: what tests print is not.
fn skipped() -> bool {
    let skipped = std::env::var_os(SKIP).is_some_and(|value| value == "1");
    if skipped {
        let mut seen = std::io::stderr();
        let _ = std::io::Write::write_all(
            &mut seen,
            format!("\n{SKIP}: a test that needs Postgres is LEFT OUT\n").as_bytes(),
        );
    }
    skipped
}

/// Where its programs are, those of its clients too: where `initdb` of the path is, else where Debian
/// puts them, the newest.
pub fn programs() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")))
        })
        .collect();
    folders.sort();
    let newest_first = folders.into_iter().rev().map(|(_, folder)| folder);
    let mut folders = std::env::split_paths(&path).chain(newest_first);
    let of_initdb = |folder: PathBuf| {
        let initdb = folder.join("initdb").canonicalize().ok()?;
        initdb.parent().filter(|folder| folder.join("postgres").exists()).map(PathBuf::from)
    };
    folders.find_map(of_initdb).unwrap_or_else(|| {
        panic!("no initdb: apt-get install postgresql, or name a server in {URL}, or leave these tests out with {SKIP}=1")
    })
}

/// One statement in a connection of its own, wherever it is called from.
pub fn execute(url: &str, statement: &str) {
    let (url, statement) = (url.to_owned(), statement.to_owned());
    let work = async move {
        let mut connection = PgConnection::connect(&url).await?;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
        connection.close().await
    };
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work)
    });
    let done = thread.join();
    if !std::thread::panicking() {
        done.unwrap().unwrap();
    }
}

#[test]
fn a_database_is_made_and_a_server_comes_back_with_its_data_however_it_went_down() {
    let Some(database) = Database::new() else { return };
    execute(&database.url(), "create table t (n int)");
    let server = Server::start_private().unwrap();
    execute(&server.url(), "create table t (n int); insert into t values (1)");
    let still_there = "select 1 / count(*) from t where n = 1";
    for how in [Stop::Immediate, Stop::Fast] {
        server.stop(how);
        server.start();
        execute(&server.url(), still_there);
    }
    server.pause();
    server.resume();
    execute(&server.url(), still_there);
}
