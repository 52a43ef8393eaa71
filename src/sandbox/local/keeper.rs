//! The keeper of a session that has no process namespace: it ends the session's process group.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::room::{INTERRUPT, wait};
use super::sys::{self, StepError, step};
use super::wire::{self, FromRoom, SpawnRequest};

/// The byte before the number of the session's process group.
const GROUP: u8 = b'G';
/// The byte that asks for the end of the session.
pub(super) const END: u8 = b'E';
/// Places in the session's folder.
const PLACES: [&str; 3] = ["files", "tmp", "home"];
const AGAIN: Duration = Duration::from_millis(5);

/// Runs as the keeper and never returns. It outlives the warden on purpose: it ends when the
/// service lets go of its socket, or when the kernel has ended, and all of the session with it.
pub(super) fn live(request: &SpawnRequest, socket: &OwnedFd) -> ! {
    match prepare(request, socket) {
        Ok(()) => {
            serve(socket);
            sys::exit_now(0)
        }
        Err(error) => {
            let message = FromRoom::Failed { step: error.step, errno: error.errno };
            let _ = sys::send_message(socket.as_fd(), &wire::encode(&message), &[]);
            sys::exit_now(1)
        }
    }
}

/// Tells a keeper which group it keeps, and gives it the kernel to watch.
pub(super) fn tell_group(
    socket: BorrowedFd<'_>,
    group: i32,
    kernel: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut message = vec![GROUP];
    message.extend(group.to_le_bytes());
    sys::send_message(socket, &message, &[kernel])
}

fn prepare(request: &SpawnRequest, socket: &OwnedFd) -> Result<(), StepError> {
    sys::block_signals(); // nothing but the session's end ends its keeper
    let missing = || StepError { step: "find the session's folder".into(), errno: libc::ENOENT };
    let folder = request.folder.as_ref().ok_or_else(missing)?;
    for place in PLACES {
        step("make the session's folder", make(&folder.join(place)))?;
    }
    let files = folder.join("files");
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let place = step("open files", rustix::fs::open(&files, flags | OFlags::PATH, Mode::empty()))?;
    let files = step("open files", rustix::fs::open(&files, flags, Mode::empty()))?;
    let keep = [socket.as_raw_fd(), place.as_raw_fd(), files.as_raw_fd()];
    step("close descriptors", sys::close_all_but(&keep))?;
    let ready = wire::encode(&FromRoom::Ready);
    step("report", sys::send_message(socket.as_fd(), &ready, &[files.as_fd(), place.as_fd()]))
}

fn make(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
}

/// Passes interrupts on until the session must end, and ends it.
fn serve(socket: &OwnedFd) {
    let mut kept: Option<(i32, OwnedFd)> = None;
    while let Ok(ended) = turn(socket, &mut kept) {
        if ended {
            break;
        }
    }
    if let Some((group, _)) = kept {
        end_group(group);
    }
}

/// One message, or the end of the kernel; true when the session must end.
fn turn(socket: &OwnedFd, kept: &mut Option<(i32, OwnedFd)>) -> io::Result<bool> {
    let kernel = kept.as_ref().map(|(_, kernel)| kernel.as_fd());
    let watched: Vec<_> = std::iter::once(socket.as_fd()).chain(kernel).collect();
    let ready = wait(&watched, None)?;
    if ready.get(1).is_some_and(|ended| *ended) {
        return Ok(true);
    }
    if !ready[0] {
        return Ok(false);
    }
    let (message, mut descriptors) = sys::receive_message(socket.as_fd())?;
    match message[..] {
        [] | [END, ..] => return Ok(true),
        [INTERRUPT, ..] => {
            if let Some((group, _)) = kept {
                sys::signal_group(*group, libc::SIGINT);
            }
        }
        [GROUP, a, b, c, d] => {
            let group = i32::from_le_bytes([a, b, c, d]);
            // the numbers 0 and 1 would name groups of others
            *kept = descriptors.pop().filter(|_| group > 1).map(|kernel| (group, kernel));
        }
        _ => {}
    }
    Ok(false)
}

/// Kills until nobody of the group is left: the kernel's parent reaps them.
fn end_group(group: i32) {
    for _ in 0..2000 {
        if !sys::signal_group(group, libc::SIGKILL) {
            return;
        }
        std::thread::sleep(AGAIN);
    }
}
