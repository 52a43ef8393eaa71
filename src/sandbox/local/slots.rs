//! User namespaces of sessions: made once for each slot, used by one session after the other.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::mount::OpenTreeFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::DumpableBehavior;
use rustix::thread::UnshareFlags;

use super::room::{open_folder, wait, write_at};
use super::sys::{self, Fork, StepError, step};

const MAKE_LIMIT: Duration = Duration::from_secs(5);

/// The namespaces of one slot.
pub(super) struct Slot {
    /// The user namespace that the session lives in, below the one that owns its mounts: even all
    /// capabilities in it would not let it mount or leave. Processes are counted for each apart.
    pub(super) room: OwnedFd,
    /// Where sessions have users of their own: shows the session's files as the service's.
    pub(super) files: Option<OwnedFd>,
    /// The session's user among those of the warden; 0 is the service's.
    pub(super) user: u32,
}

/// All slots so far.
pub(super) struct Slots {
    slots: Vec<Option<Slot>>,
    own_users: bool,
}

impl Slots {
    /// No slots yet. `own_users`: the warden has a range of users, and mounts can map them.
    pub(super) fn new(own_users: bool) -> Self {
        Self { slots: Vec::new(), own_users }
    }

    /// The slot of this number, made when it is asked for the first time.
    pub(super) fn get(&mut self, number: u32, proc: &OwnedFd) -> Result<&Slot, StepError> {
        let place = number as usize;
        if self.slots.len() <= place {
            self.slots.resize_with(place + 1, || None);
        }
        let slot = &mut self.slots[place];
        if slot.is_none() {
            *slot = Some(Slot::make(number, self.own_users, proc)?);
        }
        slot.as_ref().ok_or_else(|| StepError { step: "make a slot".into(), errno: libc::EIO })
    }
}

impl Slot {
    fn make(number: u32, own_users: bool, proc: &OwnedFd) -> Result<Self, StepError> {
        let user = if own_users { number + 1 } else { 0 };
        let room = user_namespace(&format!("1000 {user} 1"), proc)?;
        let map = own_users.then(|| format!("{user} 0 1"));
        let files = map.map(|map| user_namespace(&map, proc)).transpose()?;
        Ok(Self { room, files, user })
    }
}

/// Whether the owners of a tmpfs can be mapped here: Linux 6.3 and newer.
pub(super) fn can_map_owners(proc: &OwnedFd) -> bool {
    let mapped = user_namespace("1 0 1", proc).and_then(|users| {
        let mount = detached("/tmp")?;
        step("map owners", sys::map_owners(mount.as_fd(), users.as_fd()))
    });
    mapped.is_ok()
}

/// A mount of what is at a path, seen by nobody else.
pub(super) fn detached(path: &str) -> Result<OwnedFd, StepError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    step("clone the mount", rustix::mount::open_tree(rustix::fs::CWD, path, flags))
}

/// A user namespace with one user and one group, mapped alike. A child makes it; this process, which
/// has the rights over the users that are mapped, writes the maps.
fn user_namespace(map: &str, proc: &OwnedFd) -> Result<OwnedFd, StepError> {
    let (ours, theirs) = step(
        "make a slot's socket",
        rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        ),
    )?;
    if matches!(step("fork for a slot", sys::fork())?, Fork::Child) {
        let made = hold_namespace(&theirs, proc);
        sys::exit_now(i32::from(made.is_err()))
    }
    drop(theirs);
    let ready = step("wait for a slot", wait(&[ours.as_fd()], Some(MAKE_LIMIT)))?;
    let nobody = || StepError { step: "unshare user".into(), errno: libc::EPERM };
    if !ready[0] {
        return Err(nobody());
    }
    let (_, mut folders) = step("hear of a slot", sys::receive_message(ours.as_fd()))?;
    let process = folders.pop().ok_or_else(nobody)?;
    for (name, text) in [("setgroups", "deny"), ("uid_map", map), ("gid_map", map)] {
        step(&format!("write {name}"), write_at(&process, name, text))?;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    step("open the namespace", rustix::fs::openat(&process, "ns/user", flags, Mode::empty()))
}

fn hold_namespace(socket: &OwnedFd, proc: &OwnedFd) -> Result<(), StepError> {
    let own = step("open own proc", open_folder(proc, "self"))?;
    let keep = [socket.as_raw_fd(), own.as_raw_fd()];
    step("close descriptors", sys::close_all_but(&keep))?;
    step("unshare user", sys::unshare(UnshareFlags::NEWUSER))?;
    // a change of credentials closes /proc/self to the parent
    step("stay open", rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable))?;
    step("report", sys::send_message(socket.as_fd(), b"made", &[own.as_fd()]))?;
    let until_let_go = wait(&[socket.as_fd()], Some(MAKE_LIMIT));
    step("wait", until_let_go).map(drop)
}
