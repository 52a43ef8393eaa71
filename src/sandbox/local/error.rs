//! How the provider `local` fails.

use std::io;

use super::guest::GuestError;
use crate::domain::provider::IsolationLevel;

/// Why no room can be made, or why one has ended.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The guest Python is missing or not usable.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The host does not allow a step; the remedy says what to change.
    #[error("this host does not allow the sandbox: {step} failed ({}); {remedy}", io::Error::from_raw_os_error(*errno))]
    Host {
        /// What was tried.
        step: String,
        /// What the kernel answered.
        errno: i32,
        /// What to change.
        remedy: &'static str,
    },
    /// The warden cannot be started or spoken to.
    #[error("the warden cannot be reached")]
    Warden(#[source] io::Error),
    /// The warden ended.
    #[error("the warden has ended")]
    WardenEnded,
    /// The kernel did not come up.
    #[error("the kernel did not start within its time")]
    KernelSilent,
    /// The trial cell did not give what it must.
    #[error("the trial cell did not add; it gave {0:?}")]
    Trial(String),
    /// A session can do what it must not be able to do at its level.
    #[error(
        "sessions are not kept apart as they must be: the trial could {0}; do not run code on this host"
    )]
    Leaks(String),
    /// Landlock is too old for sessions without namespaces.
    #[error(
        "the level restricted needs Landlock ABI 6 (Linux 6.12 or newer), which keeps signals in; this kernel has ABI {0}"
    )]
    OldLandlock(u32),
    /// No level may be used.
    #[error("no level of isolation is allowed: set --local-levels")]
    NoLevel,
    /// None of several levels works on this host.
    #[error("no level that is allowed works here: {}", each(.0))]
    NoLevelWorks(Vec<(IsolationLevel, LocalError)>),
    /// The level none was asked for without saying that it is meant.
    #[error(
        "the level none lets code do all that this service's user can do: set --local-allow-insecure if that is meant"
    )]
    Insecure,
    /// All users that sessions may be are taken.
    #[error("all users that sessions can be are taken")]
    NoSlot,
    /// A session's cgroup cannot be made.
    #[error("a session's cgroup cannot be made; --local-cgroups=false does without")]
    Cgroup(#[source] io::Error),
    /// The processes of a dead room do not end.
    #[error("the processes of a dead sandbox do not end")]
    NotGone,
    /// Installed packages cannot be kept.
    #[error("the folder for packages cannot be written")]
    Layer(#[source] io::Error),
    /// The provider has been closed.
    #[error("the provider is closed")]
    Closed,
    /// A session's folder cannot be made.
    #[error("the folder for sessions cannot be prepared")]
    Folder(#[source] io::Error),
}

impl LocalError {
    /// True when it is this host that does not allow a level: another one may work.
    pub(super) fn is_of_the_host(&self) -> bool {
        matches!(self, Self::Host { .. } | Self::OldLandlock(_) | Self::KernelSilent)
    }
}

fn each(refused: &[(IsolationLevel, LocalError)]) -> String {
    let each = refused.iter().map(|(level, error)| format!("{}: {error}", level.word()));
    each.collect::<Vec<_>>().join("; ")
}

/// What to change where the host refuses a step, in words.
pub(super) fn remedy(step: &str, errno: i32) -> &'static str {
    match (step, errno) {
        ("run as an ordinary user", _) => {
            "start the service as an ordinary user, or let it become one"
        }
        ("unshare user" | "clone the room", libc::ENOSPC) => {
            "raise user.max_user_namespaces (sysctl), it is used up or 0"
        }
        ("unshare user", _) => {
            "user namespaces are not allowed: in a container use the options that docs/security.md \
             names, on a host set kernel.unprivileged_userns_clone=1 (sysctl); or accept less with \
             --local-levels=namespaced,restricted"
        }
        ("write uid_map" | "write gid_map" | "write setgroups" | "make mounts private", _) => {
            "AppArmor restricts user namespaces: set kernel.apparmor_restrict_unprivileged_userns=0 \
             (sysctl) or give the service a profile with `userns,`"
        }
        ("wait for the zygote" | "start the guest Python" | "keep the zygote alive", _) => {
            "the guest Python did not start: see the log, and run `interpreterd guest install` again"
        }
        ("join the cgroups", _) => {
            "the cgroup that was delegated to the service cannot be joined: do without with --local-cgroups=false"
        }
        ("fork the kernel", libc::EAGAIN | libc::ENOMEM) => {
            "processes or memory of the host are used up: allow more (pids and memory limits), or fewer sessions"
        }
        _ => "see the log for what the sandbox said",
    }
}
