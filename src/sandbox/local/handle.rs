//! What the service holds of a room: to end it, to reach its files, to know what it took.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use super::cgroup::{Cgroup, Controller};
use super::error::LocalError;
use super::numbers::SlotNumber;
use super::room::INTERRUPT;
use super::{keeper, sys};
use crate::domain::limits::Limits;
use crate::sandbox::host::files::Files;
use crate::sandbox::host::folders;

const END_LIMIT: Duration = Duration::from_secs(30);

/// What others than the running cell need of a room.
pub(super) struct Room {
    /// Its init, or its keeper.
    pidfd: OwnedFd,
    socket: OwnedFd,
    pub(super) files: Files,
    pub(super) limits: Limits,
    /// Its folder on the host, where it has no root of its own.
    folder: Option<PathBuf>,
    held: Held,
    /// The numbers of its first processes on the host.
    pub(super) first: [i32; 2],
    exceeded: OnceLock<Exceeded>,
    /// Whether the last look at its open files saw all of them.
    seen_whole: AtomicBool,
}

/// A limit of a session as a whole that was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exceeded {
    Memory,
    Processes,
    Disk,
}

/// The parts that a room is put together from.
pub(super) struct Parts {
    pub(super) pidfd: OwnedFd,
    pub(super) kernel: OwnedFd,
    pub(super) socket: OwnedFd,
    pub(super) files: Files,
    pub(super) limits: Limits,
    pub(super) folder: Option<PathBuf>,
    pub(super) held: Held,
}

/// What a room has of the host for as long as it is.
pub(super) struct Held {
    pub(super) cgroup: Option<Cgroup>,
    /// Others may be this user again when it is dropped.
    pub(super) _slot: SlotNumber,
}

impl Room {
    pub(super) fn new(parts: Parts) -> io::Result<Self> {
        let Parts { pidfd, kernel, socket, files, limits, folder, held } = parts;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let first = [number(pidfd.as_fd())?, number(kernel.as_fd())?];
        Ok(Self {
            pidfd,
            socket,
            files,
            limits,
            folder,
            held,
            first,
            exceeded: OnceLock::new(),
            seen_whole: AtomicBool::new(true),
        })
    }

    /// Ends every process of the room.
    pub(super) fn kill(&self) {
        if self.folder.is_some() {
            self.tell(keeper::END); // it alone knows when its group is empty
        } else {
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        }
    }

    /// Ends the room because it passed a limit; the first one is told.
    pub(super) fn kill_for(&self, exceeded: Exceeded) {
        let _ = self.exceeded.set(exceeded);
        self.kill();
    }

    /// Waits until every process of the room is gone; false when one does not end in time, as when
    /// the host's kernel is busy with it.
    pub(super) async fn gone(&self) -> bool {
        let ended = async {
            let pidfd = sys::watched(self.pidfd.try_clone()?)?;
            pidfd.readable().await.map(drop)
        };
        matches!(tokio::time::timeout(END_LIMIT, ended).await, Ok(Ok(())))
    }

    /// Ends it for good, its folder on the host with it.
    pub(super) async fn end(&self) -> Result<(), LocalError> {
        self.kill();
        if !self.gone().await {
            return Err(LocalError::NotGone);
        }
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let removed = tokio::task::spawn_blocking(move || folders::remove(&folder)).await;
        removed.map_err(io::Error::from).and_then(|done| done).map_err(LocalError::Folder)
    }

    pub(super) fn interrupt(&self) {
        self.tell(INTERRUPT);
    }

    pub(super) fn tell(&self, byte: u8) {
        let _ = sys::send_message(self.socket.as_fd(), &[byte], &[]);
    }

    /// How many of its processes the host's kernel has killed for want of memory.
    pub(super) fn oom_kills(&self) -> u64 {
        self.held.cgroup.as_ref().map_or(0, Cgroup::oom_kills)
    }

    pub(super) fn is_held_by_cgroup(&self, controller: Controller) -> bool {
        self.held.cgroup.as_ref().is_some_and(|cgroup| cgroup.holds(controller))
    }

    /// Notes whether a look saw all of its open files, and gives what the look before noted.
    pub(super) fn was_seen_whole(&self, now: bool) -> bool {
        self.seen_whole.swap(now, Ordering::SeqCst)
    }

    /// The limit that was passed since there were so many kills for want of memory.
    pub(super) fn exceeded_since(&self, oom_kills: u64) -> Option<Exceeded> {
        let by_cgroup = (self.oom_kills() > oom_kills).then_some(Exceeded::Memory);
        self.exceeded.get().copied().or(by_cgroup)
    }

    /// Bytes of its files, where they are in memory.
    pub(super) fn bytes_in_tmpfs(&self) -> u64 {
        if self.folder.is_some() { 0 } else { self.files.bytes_of_file_system() }
    }

    /// True when both have one folder of the host for their files.
    pub(super) fn has_files_of(&self, other: &Self) -> bool {
        self.folder.is_some() && self.folder == other.folder
    }

    /// The folder of the host that its files fill.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }
}

impl AsRef<Files> for Room {
    fn as_ref(&self) -> &Files {
        &self.files
    }
}

/// The number of a process in this pid namespace.
fn number(pidfd: BorrowedFd<'_>) -> io::Result<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let line = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    line.and_then(|pid| pid.trim().parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
