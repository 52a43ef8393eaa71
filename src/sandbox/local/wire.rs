//! Messages and frames of the provider, as types: pure.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::root::RootPlan;
use super::seccomp::Filters;
use crate::domain::provider::IsolationLevel;

/// How a warden is set up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WardenPlan {
    pub(super) level: IsolationLevel,
    pub(super) root: RootPlan,
    /// The folder that holds the interpreter, as the zygote sees it.
    pub(super) bin: PathBuf,
    /// The folder that holds our own code for the guest, as the zygote sees it.
    pub(super) code: PathBuf,
    /// Where the zygote may write, as it sees it.
    pub(super) home: PathBuf,
    /// What sessions may read where they have no root of their own.
    pub(super) readable: Vec<PathBuf>,
    /// Modules that the zygote imports before the first fork.
    pub(super) modules: Vec<String>,
    /// Where packages stand that all sessions have besides the guest's, as the zygote sees it.
    pub(super) packages: Option<PathBuf>,
    /// Which of them the zygote imports before the first fork.
    pub(super) requirements: Vec<String>,
    /// Sessions have the host's network.
    pub(super) network: bool,
    pub(super) environ: BTreeMap<String, String>,
}

/// What a room and its kernel are made with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SpawnRequest {
    pub(super) id: String,
    pub(super) disk_bytes: u64,
    pub(super) inodes: u64,
    /// What each process may map beyond the warm Python.
    pub(super) address_bytes: u64,
    /// Names of resource limits without `RLIMIT_`, soft and hard alike.
    pub(super) limits: BTreeMap<String, u64>,
    /// The session's folder on the host, where it has no root of its own.
    pub(super) folder: Option<PathBuf>,
    /// Which user namespace it gets, and no other living session has.
    pub(super) slot: u32,
    /// The layer that is mounted for it.
    pub(super) layer: Option<String>,
    /// Where its packages stand, as it sees them.
    pub(super) packages: Option<PathBuf>,
    /// The kernel says hello only when a cell has run in it.
    pub(super) primed: bool,
}

/// What a kernel is told before its first cell. It goes to the kernel alone: whatever passes
/// through the zygote stays in its memory, which every later session is a copy of.
#[derive(Debug, Serialize)]
pub(super) struct EnvironFrame<'a> {
    pub(super) t: &'static str,
    pub(super) environ: &'a BTreeMap<String, String>,
}

/// How many descriptors of a spawn are the session's: its socket, stdout, stderr, late output.
pub(super) const PIPES: usize = 4;

/// Service to warden. A start may carry a range of users. A spawn carries session socket, stdout, stderr and late output, then what is
/// written to in order to join the session's cgroups.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum ToWarden {
    Start(WardenPlan),
    Spawn(SpawnRequest),
}

/// Warden to service. `Spawned` carries the pidfds of room and kernel, the files folder readable
/// and as a place, and the room's socket.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum FromWarden {
    Ready {
        python: String,
        packages: BTreeMap<String, String>,
        landlock: u32,
        own_proc: bool,
        own_users: bool,
    },
    Spawned {
        id: String,
    },
    Failed {
        id: String,
        step: String,
        errno: i32,
    },
    /// Negative: the number of a signal.
    Exited {
        id: String,
        code: i32,
    },
    Fatal {
        step: String,
        errno: i32,
    },
}

/// Warden to zygote. A fork carries the room's pidfd before what the service gave.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum ToZygote {
    Start {
        level: IsolationLevel,
        modules: Vec<String>,
        packages: Option<PathBuf>,
        requirements: Vec<String>,
        network: bool,
        filters: Vec<String>,
        session_filters: Vec<String>,
        readable: Vec<PathBuf>,
        bin: PathBuf,
    },
    Fork {
        #[serde(flatten)]
        request: SpawnRequest,
        /// The session's user among those of the warden.
        user: u32,
    },
}

/// Zygote to warden.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum FromZygote {
    Ready {
        python: String,
        packages: BTreeMap<String, String>,
        landlock: u32,
        threads: u32,
    },
    Forked {
        id: String,
        pid: i32,
    },
    /// No kernel could be forked.
    Failed {
        id: String,
        errno: i32,
    },
    Exited {
        id: Option<String>,
        code: i32,
    },
}

/// Room init to warden. `Ready` carries the files folder, readable and as a place.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum FromRoom {
    Ready,
    Failed { step: String, errno: i32 },
}

impl ToZygote {
    pub(super) fn start(plan: &WardenPlan, filters: &Filters) -> Self {
        let text = |programs: &[Vec<u8>]| programs.iter().map(|p| STANDARD.encode(p)).collect();
        Self::Start {
            level: plan.level,
            modules: plan.modules.clone(),
            packages: plan.packages.clone(),
            requirements: plan.requirements.clone(),
            network: plan.network,
            filters: text(&filters.zygote),
            session_filters: text(&filters.session),
            readable: plan.readable.clone(),
            bin: plan.bin.clone(),
        }
    }
}

/// A message as it travels.
pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages have string keys and no failing parts")
}

/// The message, or None when it is none of these.
pub(super) fn decode<T: DeserializeOwned>(message: &[u8]) -> Option<T> {
    serde_json::from_slice(message).ok()
}

/// A cell on its way to the kernel.
#[derive(Debug, Serialize)]
pub(super) struct ExecFrame<'a> {
    pub(super) t: &'static str,
    pub(super) id: &'a str,
    pub(super) code: &'a str,
    pub(super) lang: &'static str,
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) stdin: Option<&'a str>,
}

/// A frame as it travels to a kernel, its length first.
pub(super) fn framed<T: Serialize>(message: &T) -> Vec<u8> {
    let body = encode(message);
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(body);
    frame
}
