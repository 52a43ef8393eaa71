//! A range of the host's users for sessions, taken while the service is still root.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::FlockOperation;
use rustix::thread::UnshareFlags;

use super::sys::{self, Fork};
use crate::config::User;

const LOCKS: &str = "/run/interpreterd-users";
/// How many services on one host can have users of their own for sessions.
const RANGES: u32 = 256;
/// As many users as sessions can have at once, and more.
pub(super) const USERS: u32 = 65_535;

/// A user namespace that holds the service's user as 0 and a range of others from 1 on. It belongs
/// to the service's user, so that each warden may enter it long after root was given up.
#[derive(Debug)]
pub struct UserRange {
    pub(super) namespace: OwnedFd,
    /// Held while these users are ours: another service on this host takes the next ones.
    _lock: Option<File>,
}

impl UserRange {
    /// Takes [`USERS`] users of the host from `first` on. Needs root and a single thread.
    pub(super) fn take(user: User, first: u32) -> io::Result<Self> {
        let (first, lock) = reserve(first)?;
        if fs::read_dir("/proc/self/task")?.count() != 1 {
            return Err(io::Error::other("there is more than one thread"));
        }
        let (mut made, making) = io::pipe()?;
        let (mut held, holding) = io::pipe()?;
        match sys::fork()? {
            Fork::Child => {
                drop((made, holding));
                let entered = enter(user).and_then(|()| (&making).write_all(b"1"));
                drop(making);
                let _ = held.read(&mut [0]); // until the parent has what it needs
                sys::exit_now(i32::from(entered.is_err()))
            }
            Fork::Parent(child) => {
                drop((making, held));
                let range = made.read_exact(&mut [0]).and_then(|()| map(child, user, first));
                drop(holding);
                sys::wait_for(child);
                Ok(Self { namespace: range?, _lock: lock })
            }
        }
    }
}

/// The first range from here on that no other service has. Without a folder for locks, as in a
/// container, it is this one.
fn reserve(first: u32) -> io::Result<(u32, Option<File>)> {
    for first in (0..RANGES).filter_map(|n| first.checked_add(n * (USERS + 1))) {
        let Ok(file) = File::create(format!("{LOCKS}-{first}.lock")) else {
            return Ok((first, None));
        };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok((first, Some(file)));
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// The namespace belongs to whoever makes it: the service's user.
fn enter(user: User) -> io::Result<()> {
    sys::become_user(user.uid, user.gid)?;
    sys::unshare(UnshareFlags::NEWUSER)
}

fn map(child: i32, user: User, first: u32) -> io::Result<OwnedFd> {
    let process = format!("/proc/{child}");
    fs::write(format!("{process}/setgroups"), "deny")?;
    for (name, own) in [("uid_map", user.uid), ("gid_map", user.gid)] {
        fs::write(format!("{process}/{name}"), format!("0 {own} 1\n1 {first} {USERS}"))?;
    }
    Ok(File::open(format!("{process}/ns/user"))?.into())
}
