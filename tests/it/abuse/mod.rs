//! What hostile code tries in the sandbox `local`, one attempt a test, and what must come of it.

/// One attempt: a name, the code of one cell, what must come of it; where the level `restricted`
/// has another answer, that too, as in `cell!(name, code, Shows(..), restricted: Shows(..))`.
macro_rules! cell {
    ($name:ident, $code:expr, $expected:expr $(, restricted: $restricted:expr)? $(,)?) => {
        fn $name() -> $crate::abuse::Row {
            $crate::abuse::Row::new($code, $expected)$(.restricted($restricted))?
        }

        mod $name {
            #[tokio::test]
            async fn namespaced() {
                super::$name().hold(&$crate::support::server::caller()).await;
            }

            #[tokio::test]
            async fn restricted() {
                let caller = $crate::support::server::restricted().caller();
                super::$name().hold_restricted(&caller).await;
            }
        }
    };
}

mod calls;
mod channel;
mod files;
mod interpreter;
mod later;
mod limits;
mod network;
mod processes;

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::support::server::{Server, program, shared};
use crate::support::{Caller, Session};

/// What must come of a cell.
#[derive(Debug, Clone, Copy)]
pub enum Expected {
    /// It succeeds, and this is its text once every run of white space is one space.
    Shows(&'static str),
    /// It ends with an exception of this name; the variables stay.
    Fails(&'static str),
    /// The interpreter ends of it with this exit code.
    Dies { exit_code: i32 },
    /// A limit on addresses means an exception, one on pages the end of the interpreter.
    OutOfMemory,
    /// The same where a cgroup counts all memory; elsewhere what is not counted is told as missing.
    OutOfCountedMemory,
    /// It is stopped after its second, which it has not more of.
    TimesOut { state_lost: bool },
    /// Not tried at this level, for this reason.
    Skip(&'static str),
}

/// One attempt and what must come of it.
pub struct Row {
    code: &'static str,
    namespaced: Expected,
    restricted: Option<Expected>,
}

impl Row {
    pub fn new(code: &'static str, namespaced: Expected) -> Self {
        Self { code, namespaced, restricted: None }
    }

    pub fn restricted(self, expected: Expected) -> Self {
        Self { restricted: Some(expected), ..self }
    }

    pub async fn hold(self, caller: &Caller) {
        self.namespaced.hold(caller, self.code).await;
    }

    pub async fn hold_restricted(self, caller: &Caller) {
        self.restricted.unwrap_or(self.namespaced).hold(caller, self.code).await;
    }
}

impl Expected {
    async fn hold(self, caller: &Caller, code: &str) {
        if let Self::Skip(reason) = self {
            eprintln!("not tried: {reason}");
            return;
        }
        if matches!(self, Self::OutOfCountedMemory) && !counts_memory(caller).await {
            eprintln!("not tried: nothing counts it here, which is told");
            return;
        }
        let scene = Scene::open(caller).await;
        let seconds = if matches!(self, Self::TimesOut { .. }) { 1 } else { 30 };
        let execution = scene.attack_within(code, seconds).await;
        self.check(&execution);
        let kept = scene.attacker.text("1 + 1\n'attempt' in globals()").await;
        assert_eq!(kept, if execution["state_lost"] == true { "False" } else { "True" });
        scene.close().await;
    }

    fn check(self, execution: &Value) {
        let seen = (&execution["status"], &execution["failure"]["kind"], &execution["state_lost"]);
        let (success, error, timeout) = (json!("success"), json!("error"), json!("timeout"));
        let (killed, oom) = (json!("killed"), json!("oom"));
        let name = &execution["error_detail"]["name"];
        let told = short(execution);
        match self {
            Self::Shows(text) => {
                assert_eq!(seen, (&success, &Value::Null, &json!(false)), "{told}");
                let shown: Vec<&str> =
                    execution["text"].as_str().unwrap().split_whitespace().collect();
                assert_eq!(shown.join(" "), text, "{told}");
            }
            Self::Fails(expected) => {
                assert_eq!(seen, (&error, &Value::Null, &json!(false)), "{told}");
                assert_eq!(name, expected, "{told}");
            }
            Self::Dies { exit_code } => {
                assert_eq!(seen, (&error, &killed, &json!(true)), "{told}");
                assert_eq!(execution["exit_code"], exit_code, "{told}");
            }
            Self::OutOfMemory | Self::OutOfCountedMemory if seen.1 == &oom => {
                // what was killed is a child, or the kernel itself
                assert_eq!(seen.0, &error, "{told}");
                assert_eq!(execution["exit_code"] == 137, seen.2 == &json!(true), "{told}");
            }
            Self::OutOfMemory | Self::OutOfCountedMemory => {
                assert_eq!(seen, (&error, &Value::Null, &json!(false)), "{told}");
                assert_eq!(name, "MemoryError", "{told}");
            }
            Self::TimesOut { state_lost } => {
                assert_eq!((seen.0, seen.2), (&timeout, &json!(state_lost)), "{told}");
            }
            Self::Skip(_) => {}
        }
        assert_eq!(execution["files_lost"], false, "{told}");
    }
}

async fn counts_memory(caller: &Caller) -> bool {
    let (_, providers) = caller.get("/v1/providers").await;
    providers["data"][0]["isolation"]["memory_limit"] != "rlimit"
}

/// A session that attacks, and one of somebody else who must not notice.
pub struct Scene<'a> {
    pub caller: &'a Caller,
    pub attacker: Session<'a>,
    pub witness: Session<'a>,
}

impl<'a> Scene<'a> {
    pub async fn open(caller: &'a Caller) -> Self {
        let (attacker, witness) = (caller.session().await, caller.session().await);
        for session in [&attacker, &witness] {
            let execution = session.exec(&prelude()).await;
            assert_eq!(execution["status"], "success", "{execution}");
        }
        witness.exec("x = 41").await;
        Self { caller, attacker, witness }
    }

    pub async fn attack(&self, code: &str) -> Value {
        self.attack_within(code, 30).await
    }

    pub async fn attack_within(&self, code: &str, seconds: u32) -> Value {
        self.attacker.exec_with(json!({"code": code, "timeout_seconds": seconds})).await
    }

    /// What must hold after every attack; then both sessions end.
    pub async fn close(self) {
        assert_eq!(self.attacker.text("1 + 1").await, "2");
        assert_eq!(self.witness.text("x + 1").await, "42");
        assert_eq!(self.caller.get("/healthz").await.0, 200);
        for session in [self.attacker, self.witness] {
            assert_eq!(session.delete().await, 204);
        }
    }
}

/// An execution as a message of a failed check.
pub fn short(execution: &Value) -> String {
    execution.to_string().chars().take(4000).collect()
}

/// A service under a user of its own where the tests may choose one: for what the host counts per
/// user, which would take from tests that run at the same time.
async fn server_apart() -> Server {
    let start = || Server::start(&[("USER", "10077:10077")]);
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// What the host has that no cell may reach.
struct Host {
    file: PathBuf,
    abstract_name: String,
    _listener: UnixListener,
}

fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        let file = shared().data_dir.with_file_name("secret.txt");
        std::fs::write(&file, "sesame-42").unwrap();
        let abstract_name = format!("interpreterd-abuse-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        Host { file, abstract_name, _listener: listener }
    })
}

/// The cell that the sessions start with: short words, and where the host's things are.
fn prelude() -> String {
    let host = host();
    let calls: serde_json::Map<String, Value> = CALLS
        .iter()
        .chain(OLD_CALLS)
        .map(|(name, number)| (name.trim_start_matches("SYS_").to_owned(), json!(number)))
        .collect();
    let quoted = |path: &Path| Value::from(path.display().to_string());
    format!(
        "CALLS = {}\nHOST_FILE = {}\nHOST_PROGRAM = {}\nHOST_PORT = {}\nHOST_ABSTRACT = {:?}\n\
         HOST_PIDS = [{}, {}]\n{PRELUDE}",
        Value::from(calls),
        quoted(&host.file),
        quoted(&program()),
        shared().base.rsplit(':').next().unwrap(),
        host.abstract_name,
        shared().pid(),
        std::process::id(),
    )
}

const PRELUDE: &str = r#"
import ctypes, errno, fcntl, mmap, os, resource, select, signal, socket, struct, subprocess, sys
import threading, time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(name, *arguments):
    "A raw system call: what it gives, or the name of its error."
    number = CALLS[name] if isinstance(name, str) else name
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *values)
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]

def attempt(f, *arguments):
    "What a function gives, or the name of its error, or the name of its exception."
    try:
        return f(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno) or type(error).__name__
    except BaseException as error:
        return type(error).__name__

def refused(f, *arguments):
    "True when the system says that it may not be, in whichever of its words."
    return attempt(f, *arguments) in ("EACCES", "EPERM", "EROFS")

def frame(body):
    "Speaks for the kernel: a frame into its channel."
    body = body.encode() if isinstance(body, str) else body
    os.write(950, struct.pack("<I", len(body)) + body)

def cell_id():
    from interpreterd_guest.shell import Current
    return Current.cell_id

def wait_until(condition, seconds=5):
    "True when the condition came to hold within the time."
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())
"#;

macro_rules! calls {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), libc::$name)),*] };
}

/// The numbers of system calls on this machine, by name.
#[rustfmt::skip]
const CALLS: &[(&str, libc::c_long)] = calls![
    SYS_acct, SYS_add_key, SYS_adjtimex, SYS_bpf, SYS_capset, SYS_chroot, SYS_clock_adjtime,
    SYS_clock_settime, SYS_clone, SYS_clone3, SYS_delete_module,
    SYS_fanotify_init, SYS_fanotify_mark, SYS_finit_module, SYS_fsconfig, SYS_fsmount,
    SYS_fsopen, SYS_fspick, SYS_futex_waitv, SYS_init_module, SYS_inotify_init1, SYS_io_destroy,
    SYS_io_getevents, SYS_io_setup, SYS_io_submit, SYS_io_uring_enter, SYS_io_uring_register,
    SYS_io_uring_setup, SYS_ioctl, SYS_ioprio_set, SYS_kcmp, SYS_kexec_file_load, SYS_kexec_load,
    SYS_keyctl, SYS_landlock_create_ruleset, SYS_landlock_restrict_self, SYS_lookup_dcookie,
    SYS_memfd_create, SYS_memfd_secret, SYS_migrate_pages, SYS_mlock, SYS_mlock2, SYS_mlockall,
    SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_move_pages, SYS_mq_open, SYS_mq_unlink,
    SYS_msgget, SYS_name_to_handle_at, SYS_nfsservctl, SYS_open_by_handle_at, SYS_open_tree,
    SYS_perf_event_open, SYS_personality, SYS_pidfd_getfd, SYS_pidfd_send_signal, SYS_pivot_root,
    SYS_prctl, SYS_prlimit64, SYS_process_madvise, SYS_process_mrelease, SYS_process_vm_readv,
    SYS_process_vm_writev, SYS_ptrace, SYS_quotactl, SYS_quotactl_fd, SYS_reboot,
    SYS_remap_file_pages, SYS_request_key, SYS_rt_sigqueueinfo, SYS_sched_setaffinity,
    SYS_sched_setattr, SYS_sched_setparam, SYS_sched_setscheduler, SYS_seccomp, SYS_semget,
    SYS_set_mempolicy_home_node, SYS_setdomainname, SYS_setfsuid, SYS_sethostname, SYS_setns,
    SYS_setpriority, SYS_settimeofday, SYS_shmat, SYS_shmctl, SYS_shmget, SYS_socket,
    SYS_socketpair, SYS_splice, SYS_swapoff, SYS_swapon, SYS_syslog, SYS_tee, SYS_tgkill,
    SYS_tkill, SYS_umount2, SYS_unshare, SYS_userfaultfd, SYS_vhangup, SYS_vmsplice,
];

/// The same for calls that newer processors never had.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLD_CALLS: &[(&str, libc::c_long)] = calls![
    SYS_ioperm, SYS_iopl, SYS_modify_ldt, SYS_uselib, SYS_ustat, SYS_sysfs,
    SYS__sysctl, SYS_get_thread_area, SYS_set_thread_area, SYS_afs_syscall, SYS_tuxcall,
    SYS_security, SYS_vserver, SYS_getpmsg,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[(&str, libc::c_long)] = &[];
