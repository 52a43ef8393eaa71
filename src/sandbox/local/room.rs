//! The room's init: process 1 of a session's pid namespace.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{DumpableBehavior, Gid, Signal, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType, UnshareFlags};

use super::layers;
use super::root::{self, Template};
use super::slots::{self, Slot};
use super::sys::{self, StepError, step};
use super::wire::{self, FromRoom, SpawnRequest};

/// Namespaces that the room is cloned into; its cgroup namespace is made inside, once it is in its
/// cgroups, and its user namespace last.
pub(super) const fn namespaces(template: &Template) -> i32 {
    let others = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if template.network { others } else { others | libc::CLONE_NEWNET }
}

/// The byte that says that the kernel has joined: the init becomes closed to others.
pub(super) const JOINED: u8 = b'J';
/// The byte that asks for SIGINT to the kernel's process group.
pub(super) const INTERRUPT: u8 = b'I';
/// The kernel is the first process after the init, and leads its group.
const KERNEL_GROUP: i32 = 2;

/// Who a session's processes are in their user namespace.
const INSIDE_USER: u32 = 1000;
pub(super) const HOST_NAME: &[u8] = b"sandbox";
/// One tmpfs holds them all, so one quota holds for them all.
const WRITABLE: [(&str, &str, u32); 5] = [
    ("/room/files", "/files", 0o755),
    ("/room/tmp", "/tmp", 0o1777),
    ("/room/home", "/home/user", 0o755),
    ("/room/shm", "/dev/shm", 0o1777),
    ("/room/vartmp", "/var/tmp", 0o1777),
];
const MASKED: [&str; 13] = [
    "kcore",
    "keys",
    "key-users",
    "timer_list",
    "kallsyms",
    "config.gz",
    "cmdline",
    "sysrq-trigger",
    "kmsg",
    "modules",
    "interrupts",
    "slabinfo",
    "vmallocinfo",
];

/// Runs as the room's init and never returns: the room ends with this process.
/// `cgroups`: what is written to in order to join them.
pub(super) fn live(
    template: &Template,
    request: &SpawnRequest,
    slot: &Slot,
    socket: &OwnedFd,
    cgroups: &[OwnedFd],
) -> ! {
    match prepare(template, request, slot, socket, cgroups) {
        Ok(()) => sys::exit_now(serve(socket).map_or(1, |()| 0)),
        Err(error) => {
            let message = FromRoom::Failed { step: error.step, errno: error.errno };
            let _ = sys::send_message(socket.as_fd(), &wire::encode(&message), &[]);
            sys::exit_now(1)
        }
    }
}

/// Makes the room, in order: dies with the warden · its cgroups · the one tmpfs and its places · its packages and
/// no others · proc and its masks · host name and loopback · the files folder is opened twice · the user namespace ·
/// descriptors are closed · the service is told · capabilities go.
fn prepare(
    template: &Template,
    request: &SpawnRequest,
    slot: &Slot,
    socket: &OwnedFd,
    cgroups: &[OwnedFd],
) -> Result<(), StepError> {
    let kill = Some(Signal::KILL);
    step("die with the warden", rustix::process::set_parent_process_death_signal(kill))?;
    for cgroup in cgroups {
        step("join the cgroups", rustix::io::write(cgroup, b"0"))?;
    }
    step("unshare cgroup", sys::unshare(UnshareFlags::NEWCGROUP))?;
    mount_writable(request, slot.user)?;
    show_packages(template, request)?;
    if template.own_proc {
        step("mount proc", root::mount_proc(Path::new("/proc"), MountFlags::RDONLY))?;
        mask_proc();
    }
    step("set host name", rustix::system::sethostname(HOST_NAME))?;
    if !template.network {
        step("bring up loopback", sys::loopback_up())?;
    }
    let [files, place] = open_files(slot)?;
    enter_user_namespace(slot)?;
    let keep = [socket.as_raw_fd(), place.as_raw_fd(), files.as_raw_fd()];
    step("close descriptors", sys::close_all_but(&keep))?;
    let ready = wire::encode(&FromRoom::Ready);
    step("report", sys::send_message(socket.as_fd(), &ready, &[files.as_fd(), place.as_fd()]))?;
    step("drop capabilities", drop_capabilities())
}

fn mount_writable(request: &SpawnRequest, user: u32) -> Result<(), StepError> {
    let options = format!("mode=755,size={},nr_inodes={}", request.disk_bytes, request.inodes);
    let options = step("tmpfs options", CString::new(options))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let mounted = rustix::mount::mount("room", "/room", "tmpfs", flags, Some(options.as_c_str()));
    step("mount the room's tmpfs", mounted)?;
    rustix::process::umask(Mode::empty());
    for (source, target, mode) in WRITABLE {
        step("make folder", rustix::fs::mkdir(source, Mode::from_raw_mode(mode)))?;
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        step("give folder", rustix::fs::chown(source, Some(uid), Some(gid)))?;
        step("bind folder", rustix::mount::mount_bind(source, target))?;
    }
    step("hide the tmpfs", rustix::mount::unmount("/room", UnmountFlags::DETACH))
}

/// The session's own layer, which is as read-only as the template; then none can be seen but it.
fn show_packages(template: &Template, request: &SpawnRequest) -> Result<(), StepError> {
    if !template.has_layers {
        return Ok(());
    }
    if let Some(layer) = &request.layer {
        let source = Path::new(layers::ALL_INSIDE).join(layer).join(layers::PACKAGES);
        step("bind packages", rustix::mount::mount_bind(source, layers::INSIDE))?;
    }
    let hidden = rustix::mount::unmount(layers::ALL_INSIDE, UnmountFlags::DETACH);
    step("hide other packages", hidden)
}

/// What tells of the host's kernel is covered; a file that this kernel lacks needs no cover.
fn mask_proc() {
    for name in MASKED {
        let _ = rustix::mount::mount_bind("/dev/null", Path::new("/proc").join(name));
    }
}

/// The files folder, readable and as a place, as the service sees it.
fn open_files(slot: &Slot) -> Result<[OwnedFd; 2], StepError> {
    let mount = slots::detached("/files")?;
    if let Some(users) = &slot.files {
        step("map owners", sys::map_owners(mount.as_fd(), users.as_fd()))?;
    }
    let folder = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |flags| step("open files", rustix::fs::openat(&mount, ".", flags, Mode::empty()));
    Ok([open(folder)?, open(folder | OFlags::PATH)?])
}

/// The session's user namespace and its user there.
fn enter_user_namespace(slot: &Slot) -> Result<(), StepError> {
    let users = Some(LinkNameSpaceType::User);
    step("enter users", rustix::thread::move_into_link_name_space(slot.room.as_fd(), users))?;
    step("become the user", sys::take_ids(INSIDE_USER, INSIDE_USER))?;
    // a change of credentials closes /proc/self, and the zygote joins through it
    step("stay open", rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable))
}

pub(super) fn open_folder(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

pub(super) fn write_at(folder: &OwnedFd, name: &str, text: &str) -> io::Result<()> {
    let file = rustix::fs::openat(folder, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    std::fs::File::from(file).write_all(text.as_bytes())
}

/// Gives up the bounding set, the ambient set and all own capabilities.
fn drop_capabilities() -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Reaps orphans and passes interrupts on, until the service closes its end.
fn serve(socket: &OwnedFd) -> io::Result<()> {
    let children = sys::child_signal_fd()?;
    let mut pipe = std::fs::File::from(children.try_clone()?);
    let mut scratch = [0; 1024];
    loop {
        let ready = wait(&[socket.as_fd(), children.as_fd()], None)?;
        while pipe.read(&mut scratch).is_ok_and(|count| count > 0) {}
        sys::reap_children();
        if !ready[0] {
            continue;
        }
        let (message, _) = sys::receive_message(socket.as_fd())?;
        match message.first() {
            None => return Ok(()),
            Some(&JOINED) => {
                rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
            }
            Some(&INTERRUPT) => {
                sys::signal_group(KERNEL_GROUP, libc::SIGINT);
            }
            Some(_) => {}
        }
    }
}

/// Waits until one of the descriptors has something to say; without a limit where none is given.
pub(super) fn wait(
    descriptors: &[BorrowedFd<'_>],
    limit: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let mut polled: Vec<PollFd<'_>> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        match poll(&mut polled, limit.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            other => {
                other?;
                break;
            }
        }
    }
    Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect())
}
