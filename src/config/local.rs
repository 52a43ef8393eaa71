//! Settings of the provider `local` and of its guest Python.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use secrecy::SecretString;

use super::{seconds, vendor};
use crate::domain::package::PackageSet;

/// Sandboxes of the provider `local`: the defaults, which are also the most that a request may ask for.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Provider local")]
pub struct LocalSettings {
    /// Levels of isolation that may be used, the best first; the first that works here is taken
    #[arg(
        long,
        env = "INTERPRETERD_LOCAL_LEVELS",
        default_value = "namespaced",
        value_delimiter = ','
    )]
    pub local_levels: Vec<LocalLevel>,
    /// Allow the level `none`, at which code can do what the service's user can do
    #[arg(long, env = "INTERPRETERD_LOCAL_ALLOW_INSECURE", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub local_allow_insecure: bool,
    /// Hold the limits of sessions by cgroups where they can be made
    #[arg(long, env = "INTERPRETERD_LOCAL_CGROUPS", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub local_cgroups: bool,
    /// First of 65,535 users of the host that sessions are, when the service is started as root; 0: all are the service's user
    #[arg(long, env = "INTERPRETERD_LOCAL_FIRST_USER", default_value_t = 1_900_000_000, value_parser = first_user)]
    pub local_first_user: u32,
    /// Memory of a session as a whole, its files included, in bytes
    #[arg(long, env = "INTERPRETERD_LOCAL_MEMORY_BYTES", default_value_t = 512 << 20, value_parser = clap::value_parser!(u64).range(64 << 20..))]
    pub local_memory_bytes: u64,
    /// Room for a session's files, temporary ones included, in bytes; held in memory
    #[arg(long, env = "INTERPRETERD_LOCAL_DISK_BYTES", default_value_t = 256 << 20, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub local_disk_bytes: u64,
    /// Memory of the host that uploads leave free, in bytes
    #[arg(long, env = "INTERPRETERD_LOCAL_RESERVE_BYTES", default_value_t = 256 << 20)]
    pub local_reserve_bytes: u64,
    /// Files and folders that a session may hold
    #[arg(long, env = "INTERPRETERD_LOCAL_INODES", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(64..))]
    pub local_inodes: u64,
    /// Processes and threads of a session together
    #[arg(long, env = "INTERPRETERD_LOCAL_PROCESSES", default_value_t = 128, value_parser = clap::value_parser!(u64).range(8..))]
    pub local_processes: u64,
    /// Open files of each process of a session
    #[arg(long, env = "INTERPRETERD_LOCAL_OPEN_FILES", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(64..))]
    pub local_open_files: u64,
    /// Largest file that a program of a session may write, in bytes
    #[arg(long, env = "INTERPRETERD_LOCAL_FILE_BYTES", default_value_t = 256 << 20, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub local_file_bytes: u64,
    /// Share of the processors that a session may take, in percent of one; held where cgroups can be made
    #[arg(long, env = "INTERPRETERD_LOCAL_CPU_PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(5..=100_000))]
    pub local_cpu_percent: u64,
    /// Sandboxes that are kept ready for new sessions, about 8 MiB each; 0: none
    #[arg(long, env = "INTERPRETERD_LOCAL_POOL", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub local_pool: u32,
    /// Age at which a sandbox that nobody has taken is made anew, in seconds
    #[arg(long, env = "INTERPRETERD_LOCAL_POOL_AGE_SECONDS", default_value = "3600", value_parser = seconds)]
    pub local_pool_age_seconds: Duration,
    /// Packages that a request may ask for
    #[arg(long, env = "INTERPRETERD_LOCAL_PACKAGES", default_value = "any")]
    pub local_packages: PackageMode,
    /// Sets of packages that are installed at start and imported before a session asks for them: names and versions with spaces between them, sets separated by semicolons
    #[arg(long, env = "INTERPRETERD_LOCAL_PACKAGE_SETS", value_delimiter = ';')]
    pub local_package_sets: Vec<PackageSet>,
    /// Index of packages (PEP 503 or 691); else PIP_INDEX_URL, else the one that pip knows
    #[arg(long, env = "INTERPRETERD_LOCAL_PACKAGE_INDEX", hide_env_values = true)]
    pub local_package_index: Option<SecretString>,
    /// What the packages of one set may take on disk, in bytes; three times as much memory while they are installed
    #[arg(long, env = "INTERPRETERD_LOCAL_PACKAGE_BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub local_package_bytes: u64,
    /// What all installed sets may take on disk, in bytes; those that were not used lately go first
    #[arg(long, env = "INTERPRETERD_LOCAL_PACKAGE_CACHE_BYTES", default_value_t = 8 << 30)]
    pub local_package_cache_bytes: u64,
}

impl LocalSettings {
    /// The sets of packages that are prepared, each once.
    #[must_use]
    pub fn package_sets(&self) -> Vec<PackageSet> {
        let mut sets = self.local_package_sets.clone();
        sets.retain(|set| !set.is_empty());
        sets.sort();
        sets.dedup();
        sets
    }

    /// The index of packages: ours, else pip's name for it.
    #[must_use]
    pub fn package_index(&self) -> Option<SecretString> {
        let ours = self.local_package_index.clone();
        ours.or_else(|| vendor("PIP_INDEX_URL").map(SecretString::from))
    }
}

/// Packages that a request may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PackageMode {
    /// None but those that are there.
    Off,
    /// The sets that the settings name.
    Prepared,
    /// Whatever the index has as wheels.
    Any,
}

/// How strongly sessions of `local` may be kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LocalLevel {
    /// Private namespaces, a private root, no capabilities, seccomp, Landlock.
    Namespaced,
    /// The host's namespaces, with seccomp and Landlock: for a container without options.
    Restricted,
    /// Limits on resources alone.
    None,
}

/// The guest Python for the provider `local`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Guest Python")]
pub struct GuestSettings {
    /// Folder for guest Pythons; default: /var/lib/interpreterd/guest for root, else below $XDG_DATA_HOME
    #[arg(long, env = "INTERPRETERD_GUEST_DIR")]
    pub guest_dir: Option<PathBuf>,
    /// The CPython (3.11 to 3.14) that `guest install` builds on; default: the newest that the sandbox's user can read
    #[arg(long, env = "INTERPRETERD_GUEST_PYTHON")]
    pub guest_python: Option<PathBuf>,
}

impl GuestSettings {
    pub(super) fn fix_folder(&mut self) {
        self.guest_dir = Some(self.folder());
    }

    /// The folder for guest Pythons.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        if let Some(folder) = &self.guest_dir {
            return folder.clone();
        }
        if rustix::process::geteuid().is_root() {
            return PathBuf::from("/var/lib/interpreterd/guest");
        }
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
        std::env::var_os("XDG_DATA_HOME")
            .map(PathBuf::from)
            .or_else(home)
            .unwrap_or_else(|| PathBuf::from("."))
            .join("interpreterd/guest")
    }
}

/// Room above it for the ranges of other services on the host.
const LAST_FIRST_USER: u32 = 4_000_000_000;

fn first_user(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(first @ (0 | 1000..=LAST_FIRST_USER)) => Ok(first),
        _ => Err(format!("0, or a number from 1000 to {LAST_FIRST_USER}, is needed")),
    }
}
