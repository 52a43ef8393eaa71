//! A range of the host's users for sessions, taken while the service is still root.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::process::DumpableBehavior;
use rustix::thread::UnshareFlags;

use super::sys::{self, Fork};
use crate::config::User;

/// As many users as sessions can have at once, and more.
pub(super) const USERS: u32 = 65_535;

/// A user namespace that holds the service's user as 0 and a range of others from 1 on. It belongs
/// to the service's user, so that each warden may enter it long after root was given up.
#[derive(Debug)]
pub struct UserRange {
    pub(super) namespace: OwnedFd,
}

impl UserRange {
    /// Takes [`USERS`] users of the host from `first` on. Needs root and a single thread.
    pub(super) fn take(user: User, first: u32) -> io::Result<Self> {
        if first < 1000 || first.checked_add(USERS).is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
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
                Ok(Self { namespace: range? })
            }
        }
    }
}

/// The namespace belongs to whoever makes it: the service's user.
fn enter(user: User) -> io::Result<()> {
    sys::become_user(user.uid, user.gid)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    sys::unshare(UnshareFlags::NEWUSER)
}

fn map(child: i32, user: User, first: u32) -> io::Result<OwnedFd> {
    let process = format!("/proc/{child}");
    fs::write(format!("{process}/setgroups"), "deny")?;
    for (name, own) in [("uid_map", user.uid), ("gid_map", user.gid)] {
        fs::write(format!("{process}/{name}"), format!("0 {own} 1\n1 {first} {USERS}"))?;
    }
    Ok(fs::File::open(format!("{process}/ns/user"))?.into())
}
