//! How strongly sessions are kept apart: found out by doing, and told.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use super::cgroup::{Cgroups, Controller};
use super::error::LocalError;
use crate::config::LocalLevel;
use crate::domain::execution::{Cell, Execution, Language};
use crate::domain::id::{ExecutionId, RunId, SessionId};
use crate::domain::provider::{Isolation, IsolationLevel};

/// The trial cell: prints the names of the probes that had success. None of them does harm, and the
/// first one, an addition, must have it.
const TRIAL: &str = include_str!("guest/trial.py");
const SUM: &str = "add";
/// From this version on Landlock keeps signals and abstract sockets in.
const SCOPING_ABI: u32 = 6;
const TRIAL_LIMIT: Duration = Duration::from_secs(30);

/// A path as Python writes a text.
fn python(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

/// The level that a setting names.
pub(super) const fn of(setting: LocalLevel) -> IsolationLevel {
    match setting {
        LocalLevel::Namespaced => IsolationLevel::Namespaced,
        LocalLevel::Restricted => IsolationLevel::Restricted,
        LocalLevel::None => IsolationLevel::None,
    }
}

/// A trial of a level: what a session must not be able to do is tried.
pub(super) struct Trial {
    /// Something to connect to, which no session may reach.
    listener: Option<TcpListener>,
}

impl Trial {
    pub(super) fn new() -> Self {
        Self { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok() }
    }

    /// The cell to run.
    pub(super) fn cell(&self, session_id: SessionId, data_dir: &Path) -> Cell {
        let address = self.listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let port = address.map_or(0, |address| address.port());
        Cell {
            id: ExecutionId::new(),
            run_id: RunId::new(),
            session_id,
            code: format!("{TRIAL}\nprobe({}, {port}, {})\n", std::process::id(), python(data_dir)),
            language: Language::Python,
            timeout: TRIAL_LIMIT,
            env: BTreeMap::new(),
            stdin: None,
        }
    }

    /// Judges what came of it.
    pub(super) fn judge(level: IsolationLevel, execution: &Execution) -> Result<(), LocalError> {
        let mut had: Vec<&str> = execution.stdout.lines().collect();
        let added = had.iter().position(|name| *name == SUM).map(|place| had.remove(place));
        if added.is_none() || execution.error.is_some() {
            return Err(LocalError::Trial(execution.text.clone()));
        }
        if level == IsolationLevel::None || had.is_empty() {
            return Ok(());
        }
        Err(LocalError::Leaks(had.join(", ")))
    }
}

/// What the warden found of its host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) own_proc: bool,
    pub(super) own_users: bool,
    pub(super) landlock_abi: u32,
}

/// What a level gives on this host, by what its limits are held, and what is missing. An error when
/// the host cannot hold the level.
pub(super) fn isolation(
    level: IsolationLevel,
    facts: Facts,
    cgroups: &Cgroups,
) -> Result<Isolation, LocalError> {
    if level == IsolationLevel::Restricted && facts.landlock_abi < SCOPING_ABI {
        return Err(LocalError::OldLandlock(facts.landlock_abi));
    }
    let own_root = level == IsolationLevel::Namespaced;
    let by =
        |controller, otherwise: &str| cgroups.holds(controller).unwrap_or(otherwise).to_owned();
    let network = match level {
        IsolationLevel::Namespaced | IsolationLevel::Vm => "loopback",
        IsolationLevel::Restricted => "none",
        IsolationLevel::None => "host",
    };
    let mut isolation = Isolation {
        level,
        own_proc: facts.own_proc,
        landlock_abi: if level == IsolationLevel::None { 0 } else { facts.landlock_abi },
        memory_limit: by(Controller::Memory, "rlimit"),
        process_limit: by(Controller::Pids, if own_root { "rlimit" } else { "watch" }),
        cpu_limit: by(Controller::Cpu, "nice"),
        disk_limit: if own_root { "tmpfs" } else { "watch" }.to_owned(),
        network: network.to_owned(),
        uid: rustix::process::geteuid().as_raw(),
        own_users: facts.own_users,
        missing: Vec::new(),
    };
    isolation.missing = missing(&isolation).into_iter().map(str::to_owned).collect();
    Ok(isolation)
}

/// What this host does not give, each with what to change.
fn missing(found: &Isolation) -> Vec<&'static str> {
    let mut missing = Vec::new();
    match found.level {
        IsolationLevel::Vm => {}
        IsolationLevel::Namespaced => {
            if !found.own_proc {
                missing.push(
                    "no /proc in sessions, so psutil and the like do not work: in a container, \
                     start it with security_opt systempaths=unconfined",
                );
            }
            if !found.own_users {
                missing.push(
                    "no users of their own for sessions, a second wall around the service's files, so no \
                     epoll either, which polars and other libraries in Rust or with libuv need: start it \
                     as root (it becomes an ordinary user) on Linux 6.3 or newer",
                );
            }
            if found.landlock_abi == 0 {
                missing.push("no Landlock, a second wall around files: it needs Linux 5.13 or newer");
            }
        }
        IsolationLevel::Restricted => missing.push(
            "no namespaces: sessions see the host's programs, have no sockets and no shared memory, \
             and their files are on the host's disk; see docs/security.md for what lets it use them",
        ),
        IsolationLevel::None => missing.push(
            "no isolation at all: the code can do what the service's user can do on this host",
        ),
    }
    if found.memory_limit == "rlimit" {
        missing.push(
            "no cgroup for memory: each process is limited, and the session as a whole by a look every \
             200 ms that does not see buffers of sockets and pipes; start it as root, or delegate a \
             cgroup v2 to it",
        );
    }
    if found.cpu_limit == "nice" {
        missing.push(
            "no cgroup for processors: sessions stand back behind the service, but have no share of \
             their own; start it as root, or delegate a cgroup v2 to it",
        );
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execution(stdout: &str) -> Execution {
        let cell = Trial { listener: None }.cell(SessionId::new(), Path::new("/"));
        Execution { stdout: stdout.to_owned(), ..Execution::of(&cell) }
    }

    #[test]
    fn a_level_at_which_a_probe_had_success_is_refused() {
        let judged = |level, stdout| Trial::judge(level, &execution(stdout));
        assert!(judged(IsolationLevel::Namespaced, "add\n").is_ok());
        let leaks = judged(IsolationLevel::Restricted, "add\nmount\nnetlink\n");
        assert!(matches!(leaks, Err(LocalError::Leaks(names)) if names == "mount, netlink"));
        assert!(matches!(judged(IsolationLevel::Namespaced, "mount\n"), Err(LocalError::Trial(_))));
        assert!(judged(IsolationLevel::None, "add\nmount\n").is_ok());
    }

    #[test]
    fn what_is_missing_is_told_with_its_remedy() {
        let facts = Facts { own_proc: true, own_users: true, landlock_abi: 7 };
        let told = |level, facts| isolation(level, facts, &Cgroups::default());
        let namespaced = told(IsolationLevel::Namespaced, facts).expect("it holds");
        assert_eq!(
            (namespaced.memory_limit.as_str(), namespaced.process_limit.as_str()),
            ("rlimit", "rlimit")
        );
        assert_eq!(namespaced.missing.len(), 2);
        let restricted = told(IsolationLevel::Restricted, facts).expect("it holds");
        assert_eq!(
            (restricted.network.as_str(), restricted.disk_limit.as_str()),
            ("none", "watch")
        );
        let old = Facts { landlock_abi: 5, ..facts };
        assert!(matches!(told(IsolationLevel::Restricted, old), Err(LocalError::OldLandlock(5))));
    }
}
