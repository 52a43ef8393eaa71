//! Landlock and seccomp around Deno: the walls behind its own permissions.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};
use seccompiler::BackendError;
use serde::{Deserialize, Serialize};

use super::filters;
use crate::domain::provider::{Isolation, IsolationLevel};

/// What a newer kernel can refuse besides is refused there too, as far as this knows of it.
const KNOWN: ABI = ABI::V6;

/// What starts a program, and may therefore be run; there is one of them on a host.
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
/// What the program and the libraries below it read of a host.
const HOST: [&str; 6] =
    ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"];
/// What V8, libc and Deno ask of it.
const FACTS: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/sys/vm",
    "/sys/devices/system/cpu",
    "/etc/localtime",
];

/// Where a process may go.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Walls {
    /// False where the settings want none.
    pub(super) stand: bool,
    pub(super) executable: Vec<PathBuf>,
    pub(super) readable: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
}

/// Why the walls do not stand.
#[derive(Debug, thiserror::Error)]
pub(super) enum WallsError {
    #[error("Landlock refuses")]
    Landlock(#[from] RulesetError),
    #[error("the filter of system calls cannot be made")]
    Filter(#[from] BackendError),
    #[error("the filter of system calls cannot be set")]
    Set(#[from] seccompiler::Error),
}

impl Walls {
    /// Puts this process behind them, for good. Gives the ABI of Landlock that holds, 0 without.
    pub(super) fn stand(&self) -> Result<u32, WallsError> {
        if !self.stand {
            return Ok(0);
        }
        let landlock_abi = self.landlock()?;
        for filter in filters::all()? {
            seccompiler::apply_filter(&filter)?;
        }
        Ok(landlock_abi)
    }

    /// On a kernel without it there is the filter alone. It sees to it that no privileges are regained.
    fn landlock(&self) -> Result<u32, WallsError> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let status = Ruleset::default()
            .handle_access(AccessFs::from_all(KNOWN))?
            .handle_access(AccessNet::from_all(KNOWN))?
            .scope(Scope::from_all(KNOWN))?
            .create()?
            .add_rules(path_beneath_rules(HOST, read))?
            .add_rules(path_beneath_rules(LOADERS, read | AccessFs::Execute))?
            .add_rules(path_beneath_rules(&self.executable, read | AccessFs::Execute))?
            .add_rules(path_beneath_rules(FACTS, read))?
            .add_rules(path_beneath_rules(["/dev/null"], read | AccessFs::WriteFile))?
            .add_rules(path_beneath_rules(&self.readable, read))?
            .add_rules(path_beneath_rules(&self.writable, writing()))?
            .restrict_self()?;
        Ok(match status.landlock {
            LandlockStatus::Available { effective_abi, .. } => effective_abi as u32,
            LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => 0,
        })
    }
}

/// Files and folders alone: no devices, sockets or links.
fn writing() -> landlock::BitFlags<AccessFs> {
    AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer
}

/// How a sandbox of ours is kept apart on this host.
pub(super) fn isolation(landlock_abi: u32, jail: bool, has_snapshot: bool) -> Isolation {
    let mut missing = vec![
        "no cgroup: memory is looked at every 200 ms while code runs, and processors are shared",
    ];
    if !jail {
        missing.push("no Landlock and no seccomp around Deno: the setting pydantic_jail is off");
    } else if landlock_abi == 0 {
        missing.push("no Landlock, a second wall around files: it needs Linux 5.13 or newer");
    }
    if !has_snapshot {
        missing.push(
            "no snapshot for this version, so each sandbox takes seconds to start: run \
             `interpreterd guest install --provider pydantic` again",
        );
    }
    Isolation {
        level: if landlock_abi > 0 { IsolationLevel::Restricted } else { IsolationLevel::None },
        own_proc: false,
        landlock_abi,
        memory_limit: "watch".to_owned(),
        process_limit: if jail { "seccomp" } else { "none" }.to_owned(),
        cpu_limit: "nice".to_owned(),
        disk_limit: "watch".to_owned(),
        network: "none".to_owned(),
        uid: rustix::process::geteuid().as_raw(),
        own_users: false,
        missing: missing.into_iter().map(str::to_owned).collect(),
    }
}
