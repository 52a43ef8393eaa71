//! A running service in a process of its own.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::Caller;
use super::model::StubModel;

const START_LIMIT: Duration = Duration::from_secs(120);
const END_LIMIT: Duration = Duration::from_secs(60);

/// The service, killed when dropped.
pub struct Server {
    child: Mutex<Child>,
    pub base: String,
    pub data_dir: PathBuf,
    log: std::sync::Arc<Mutex<String>>,
    folder: Option<tempfile::TempDir>,
}

/// The service that most tests share, with the stub model.
pub fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| {
        let model = StubModel::shared();
        let folder = open_folder();
        let server = Server::start(&[
            ("MODEL", "stub"),
            ("MODEL_BASE_URL", &model.base_url),
            ("MODEL_API_KEY", super::model::KEY),
            ("CONFIG", &model.config(folder.path())),
        ]);
        end_with_the_tests(server.pid());
        server
    })
}

/// The service whose sessions have no namespaces, which some tests share.
pub fn restricted() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| {
        let server = Server::start(&[("LOCAL_LEVELS", "restricted")]);
        end_with_the_tests(server.pid());
        server
    })
}

pub fn caller() -> Caller {
    Caller::new(&shared().base)
}

/// The program under test.
pub fn program() -> PathBuf {
    let named = std::env::var_os("INTERPRETERD_TEST_PROGRAM").map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_interpreterd")))
}

/// Refuses a system call, as container profiles do, and then becomes another program.
const WITHOUT_A_CALL: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
number = int(sys.argv[1])
load, equal, give = 0x20, 0x15, 0x06  # of classic BPF; EPERM, else allowed
lines = [(load, 0, 0, 0), (equal, 0, 1, number), (give, 0, 0, 0x50001), (give, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in lines))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(lines), ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
";

/// The program with no settings but where the guest Python is.
pub fn command() -> Command {
    bare(program())
}

/// The same on a host that does not allow a system call. Without `unshare` there are no namespaces,
/// as in a container without options.
pub fn command_without(call: libc::c_long) -> Command {
    let mut command = bare("/usr/bin/python3".into());
    command.args(["-c", WITHOUT_A_CALL, &call.to_string()]).arg(program());
    command
}

#[expect(clippy::disallowed_methods, reason = "the tests start the service")]
fn bare(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    let kept = [
        "PATH",
        "HOME",
        "XDG_DATA_HOME",
        "INTERPRETERD_GUEST_DIR",
        "OPENBLAS_CORETYPE",
        "OPENBLAS_L2_SIZE",
    ];
    command.env_clear();
    for name in kept {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// A folder that other users may enter: the service becomes one when it is started as root.
pub fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

impl Server {
    /// Starts the service with settings, named without their prefix.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let folder = open_folder();
        let mut server = Self::start_in(&folder.path().join("data"), settings);
        server.folder = Some(folder);
        server
    }

    pub fn start_in(data_dir: &Path, settings: &[(&str, &str)]) -> Self {
        Self::start_with(data_dir, settings, &[])
    }

    /// The same, with more of an environment.
    pub fn start_with(data_dir: &Path, settings: &[(&str, &str)], more: &[(&str, &str)]) -> Self {
        let settings = settings.iter().copied().collect();
        Self::start_as(command(), data_dir, settings, more)
    }

    /// Starts the service on a host that does not allow a system call.
    pub fn start_without(call: libc::c_long, settings: &[(&str, &str)]) -> Self {
        let folder = open_folder();
        let data_dir = folder.path().join("data");
        let settings = settings.iter().copied().collect();
        let mut server = Self::start_as(command_without(call), &data_dir, settings, &[]);
        server.folder = Some(folder);
        server
    }

    fn start_as(
        mut command: Command,
        data_dir: &Path,
        settings: BTreeMap<&str, &str>,
        more: &[(&str, &str)],
    ) -> Self {
        let mut environment = BTreeMap::from([
            ("LISTEN", "127.0.0.1:0"),
            ("DATA_DIR", data_dir.to_str().unwrap()),
            ("LOG_FORMAT", "json"),
        ]);
        environment.extend(settings);
        for (name, value) in environment {
            command.env(format!("INTERPRETERD_{name}"), value);
        }
        command.env("SECRET_HOST_ENV", "sesame-42").envs(more.iter().copied());
        let mut child =
            command.arg("serve").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let log = collect(child.stderr.take().unwrap());
        let base = address(stdout).unwrap_or_else(|| {
            panic!("the service did not start (make guest?):\n{}", log.lock().unwrap())
        });
        Self { child: Mutex::new(child), base, data_dir: data_dir.to_owned(), log, folder: None }
    }

    pub fn caller(&self) -> Caller {
        Caller::new(&self.base)
    }

    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    pub fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_raw(self.pid().try_into().unwrap()).unwrap();
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn wait(&self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.lock().unwrap().try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < END_LIMIT, "the service did not end:\n{}", self.log());
            std::thread::yield_now();
        }
    }

    /// What the service has logged, once the request of this id is in it.
    pub fn log_with(&self, request_id: &str) -> String {
        let started = Instant::now();
        loop {
            let log = self.log();
            let answered = |line: &str| line.contains(request_id) && line.contains("answered");
            if log.lines().any(answered) {
                return log;
            }
            assert!(started.elapsed() < END_LIMIT, "{request_id} is not in the log:\n{log}");
            std::thread::yield_now();
        }
    }

    /// What the service has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Peak resident memory in bytes.
    pub fn peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kilobytes * 1024
    }

    /// Time on a processor, in hundredths of a second.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let after_name = stat.rsplit_once(") ").unwrap().1;
        let fields = after_name.split(' ').skip(11).take(2);
        fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The address in the line that the service prints once it answers.
fn address(mut stdout: impl BufRead + Send + 'static) -> Option<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = stdout.read_line(&mut line);
        let _ = sender.send(line);
        let _ = std::io::copy(&mut stdout, &mut std::io::sink());
    });
    let line = receiver.recv_timeout(START_LIMIT).ok()?;
    Some(line.trim().strip_prefix("interpreterd answers on ")?.to_owned())
}

fn collect(mut stderr: impl Read + Send + 'static) -> std::sync::Arc<Mutex<String>> {
    let log = std::sync::Arc::new(Mutex::new(String::new()));
    let kept = std::sync::Arc::clone(&log);
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = stderr.read(&mut buffer) {
            kept.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    });
    log
}

/// Statics are not dropped: shared services are killed when the test process exits.
#[expect(unsafe_code, reason = "atexit has no safe form")]
pub fn end_with_the_tests(pid: u32) {
    static PIDS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    extern "C" fn end() {
        for pid in PIDS.lock().map(|pids| pids.clone()).unwrap_or_default() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
    let mut pids = PIDS.lock().unwrap();
    pids.push(pid);
    if pids.len() == 1 {
        // SAFETY: `end` is a plain function that lives as long as the program.
        unsafe { libc::atexit(end) };
    }
}
