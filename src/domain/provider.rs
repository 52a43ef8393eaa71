//! Providers and models as callers see them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a provider's sandboxes can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capabilities {
    /// Variables live from cell to cell.
    pub state: bool,
    /// Variables outlive a cell that ran out of time.
    pub state_after_timeout: bool,
    /// Files can be put in.
    pub upload: bool,
    /// Files can be taken out.
    pub download: bool,
    /// Command lines can be run.
    pub shell: bool,
    /// Packages can be asked for.
    pub packages: bool,
    /// The code can reach a network.
    pub network: bool,
    /// `/files` is the files folder.
    pub absolute_files_dir: bool,
    /// Output is told, and files are reached, while code runs; else both wait for its end.
    #[serde(default = "yes")]
    pub streaming: bool,
}

/// What every provider had before there was another one.
const fn yes() -> bool {
    true
}

/// How sandboxes of a provider are kept apart from their host and from each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Isolation {
    /// How strong it is.
    pub level: IsolationLevel,
    /// Sandboxes see a /proc of their own; without one, psutil and the like do not work.
    pub own_proc: bool,
    /// The version of Landlock that holds too, 0 without.
    pub landlock_abi: u32,
    /// What holds the limit on memory: `cgroup2`, `cgroup1`, or `rlimit` (each process) with a look
    /// at the whole every 200 ms.
    #[serde(default)]
    pub memory_limit: String,
    /// What holds the limit on processes: `cgroup2`, `cgroup1`, `rlimit`, `watch`, or `seccomp` (there are
    /// none but the interpreter).
    #[serde(default)]
    pub process_limit: String,
    /// What holds the share of the processors: `cgroup2`, `cgroup1`, or `nice` (none, but the
    /// service goes first).
    #[serde(default)]
    pub cpu_limit: String,
    /// What holds the limit on files: `tmpfs` or `watch`.
    #[serde(default)]
    pub disk_limit: String,
    /// What network the code has: `loopback` of its own, `none`, or `host`.
    #[serde(default)]
    pub network: String,
    /// The user that the service is on the host.
    pub uid: u32,
    /// Each session is another user of the host; otherwise all are the service's.
    #[serde(default)]
    pub own_users: bool,
    /// What this host does not give, and what to change for it.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// How strongly sandboxes are kept apart, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IsolationLevel {
    /// A machine of its own.
    Vm,
    /// Private namespaces, a private root, no capabilities, a seccomp allow-list, Landlock.
    Namespaced,
    /// The host's namespaces, with a seccomp allow-list and Landlock.
    Restricted,
    /// Limits on resources alone.
    None,
}

impl IsolationLevel {
    /// The word that settings and answers use.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Namespaced => "namespaced",
            Self::Restricted => "restricted",
            Self::None => "none",
        }
    }
}

/// A provider as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderInfo {
    /// The entry's name.
    pub name: String,
    /// The kind of provider.
    pub kind: String,
    /// True for the one that is taken when a request names none.
    pub default: bool,
    /// True when a session can be created.
    pub ready: bool,
    /// Why it is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What its sandboxes can do.
    pub capabilities: Capabilities,
    /// How they are kept apart; absent where the provider does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// The version of Python in its sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Packages that can be imported, with their versions.
    pub packages: BTreeMap<String, String>,
    /// Sandboxes that are kept ready for new sessions, a line for each set of packages.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub pool: Vec<Primed>,
}

/// Sandboxes that are kept ready for new sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Primed {
    /// The packages that they have besides the usual ones.
    pub packages: Vec<String>,
    /// How many there are when no session has been made for a moment.
    pub size: u32,
    /// How many there are now.
    pub ready: u32,
    /// Why the last one could not be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A language model as configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelInfo {
    /// The name that requests use.
    pub name: String,
    /// The wire protocol that it speaks.
    pub protocol: String,
    /// True for the one that is taken when a request names none.
    pub default: bool,
    /// True when it is shown the pictures that code draws.
    pub vision: bool,
}
