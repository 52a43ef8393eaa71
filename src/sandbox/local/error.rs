//! How the provider `local` fails.

use std::io;

use super::guest::GuestError;

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
    #[error("the trial cell gave {0:?} instead of 2")]
    Trial(String),
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
            "unprivileged user namespaces are off: in a container use the seccomp profile that the \
             README names, on a host set kernel.unprivileged_userns_clone=1 (sysctl)"
        }
        ("write uid_map" | "write gid_map" | "write setgroups" | "make mounts private", _) => {
            "AppArmor restricts user namespaces: set kernel.apparmor_restrict_unprivileged_userns=0 \
             (sysctl) or give the service a profile with `userns,`"
        }
        ("wait for the zygote" | "start the guest Python" | "keep the zygote alive", _) => {
            "the guest Python did not start: see the log, and run `interpreterd guest install` again"
        }
        ("fork the kernel", libc::EAGAIN | libc::ENOMEM) => {
            "processes or memory of the host are used up: allow more (pids and memory limits), or fewer sessions"
        }
        _ => "see the log for what the sandbox said",
    }
}
