//! The raw system calls, every unsafe block of the provider.
#![expect(unsafe_code, reason = "fork, clone and calls that rustix lacks: one system call a block")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::thread::UnshareFlags;
use tokio::io::unix::AsyncFd;

/// The most descriptors that one message carries.
const MAX_DESCRIPTORS: usize = 16;
/// The longest message between service, warden and zygote.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// https://man7.org/linux/man-pages/man2/mount_setattr.2.html, which libc does not name.
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// A step on the way into a room that the kernel refused.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{step}: {}", io::Error::from_raw_os_error(*errno))]
pub(super) struct StepError {
    pub(super) step: String,
    pub(super) errno: i32,
}

/// Names the step that a failed call belongs to.
pub(super) fn step<T, E: Into<io::Error>>(
    name: &str,
    result: Result<T, E>,
) -> Result<T, StepError> {
    result.map_err(|error| StepError {
        step: name.to_owned(),
        errno: error.into().raw_os_error().unwrap_or(libc::EIO),
    })
}

/// Which side of a fork this is.
pub(super) enum Fork<T> {
    Child,
    Parent(T),
}

/// Forks this process, which must have one thread.
pub(super) fn fork() -> io::Result<Fork<i32>> {
    // SAFETY: callers have a single thread, so the child may go on with any code.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Forks into new namespaces and gives the child's pidfd.
///
/// Plain `clone`: container profiles answer ENOSYS to `clone3`.
pub(super) fn clone_into(namespaces: i32) -> io::Result<Fork<OwnedFd>> {
    let mut pidfd: RawFd = -1;
    let flags = (namespaces | libc::CLONE_PIDFD | libc::SIGCHLD) as libc::c_ulong;
    // SAFETY: with no stack given it is a fork; the caller has a single thread, and the kernel
    // writes one descriptor to `pidfd`.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, &raw mut pidfd, 0usize, 0usize) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        // SAFETY: the kernel has just made this descriptor for us.
        _ => Ok(Fork::Parent(unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}

/// Moves this process into new namespaces.
pub(super) fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: callers have a single thread; the table of descriptors is not unshared.
    Ok(unsafe { rustix::thread::unshare_unsafe(namespaces) }?)
}

/// Ends this process without running anything on the way out.
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}

/// Waits for a child and gives its exit code, 128+N for a signal.
pub(super) fn wait_for(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is a live integer.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } == -1 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return 70;
        }
    }
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
}

/// Takes the ends of children off the process table.
pub(super) fn reap_children() {
    // SAFETY: a null status pointer is allowed.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// Adds and takes mount attributes, https://man7.org/linux/man-pages/man2/mount_setattr.2.html
pub(super) fn mount_setattr(path: &Path, set: u64, clear: u64, recursive: bool) -> io::Result<()> {
    let path = c_string(path)?;
    let attributes =
        libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    set_mount(libc::AT_FDCWD, &path, if recursive { libc::AT_RECURSIVE } else { 0 }, &attributes)
}

/// Shows the owners of a mount that nobody has seen yet as a user namespace maps them.
pub(super) fn map_owners(mount: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: users.as_raw_fd() as u64,
    };
    set_mount(mount.as_raw_fd(), c"", libc::AT_EMPTY_PATH, &attributes)
}

fn set_mount(
    place: RawFd,
    path: &std::ffi::CStr,
    flags: libc::c_int,
    attributes: &libc::mount_attr,
) -> io::Result<()> {
    // SAFETY: path and attributes live through the call, the size is theirs.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            place,
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes every descriptor from 3 on that is not in `keep`.
pub(super) fn close_all_but(keep: &[RawFd]) -> io::Result<()> {
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    let mut first: libc::c_uint = 3;
    for fd in keep {
        let fd = fd as libc::c_uint;
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = first.max(fd + 1);
    }
    close_range(first, libc::c_uint::MAX)
}

fn close_range(first: libc::c_uint, last: libc::c_uint) -> io::Result<()> {
    // SAFETY: callers no longer use the descriptors of this range.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Puts a descriptor at a fixed number that survives exec.
pub(super) fn place_at(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: dup2 takes numbers only; what was at `number` is closed on purpose.
    match unsafe { libc::dup2(fd.as_raw_fd(), number) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Blocks every signal that can be blocked.
pub(super) fn block_signals() {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set it is given.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: the set is initialised; the old mask is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut()) };
}

/// Blocks every signal and gives a descriptor that becomes readable when a child has ended.
pub(super) fn child_signal_fd() -> io::Result<OwnedFd> {
    block_signals();
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set is initialised.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD) };
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    match unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just made this descriptor for us.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Sends a signal to a process group of this pid namespace; false when nobody is in it.
pub(super) fn signal_group(group: i32, signal: i32) -> bool {
    // SAFETY: takes numbers only; a group that is gone is no fault.
    unsafe { libc::kill(-group, signal) == 0 }
}

/// Brings up `lo` in this network namespace.
pub(super) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: ifreq is plain data for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request lives through the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Drops root for good: supplementary groups, group, then user, for all threads of the process.
pub(super) fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: an empty list needs no pointer.
    if unsafe { libc::setgroups(0, std::ptr::null()) } == -1 {
        return Err(io::Error::last_os_error());
    }
    take_ids(uid, gid)
}

/// Takes a group and a user, real, effective and saved alike.
pub(super) fn take_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: takes numbers only.
    if unsafe { libc::setresgid(gid, gid, gid) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: takes numbers only.
    if unsafe { libc::setresuid(uid, uid, uid) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Puts a descriptor under tokio's watch.
pub(super) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open and always the same for as long as the AsyncFd owns it.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// Sends one message with descriptors on a SOCK_SEQPACKET socket.
pub(super) fn send_message(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message and its descriptors; an empty message means that the peer is gone.
pub(super) fn receive_message(socket: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    // its own length: a buffer for the longest would be fresh memory at each message
    let length = loop {
        match rustix::net::recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::TRUNC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?.1,
        }
    };
    let mut buffer = vec![0; length.min(MAX_MESSAGE_BYTES)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        match recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    buffer.truncate(received.bytes);
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok((buffer, descriptors))
}

fn c_string(path: &Path) -> io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::ErrorKind::InvalidInput.into())
}
