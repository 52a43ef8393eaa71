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
}

/// How sandboxes of a provider are kept apart from their host and from each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Isolation {
    /// `namespaced`: private namespaces, a private root, no capabilities, a seccomp allow-list.
    pub level: String,
    /// Sandboxes see a /proc of their own; without one, psutil and the like do not work.
    pub own_proc: bool,
    /// The version of Landlock that holds too, 0 without.
    pub landlock_abi: u32,
    /// What holds the limit on memory.
    pub memory_limit: String,
    /// The user that sandboxes are on the host.
    pub uid: u32,
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
}
