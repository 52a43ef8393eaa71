//! The template root file system that every room starts from.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use serde::{Deserialize, Serialize};

use super::sys::{self, StepError, step};
use super::{guest, layers};

/// What of the host stands in the template, read-only.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RootPlan {
    /// (path on the host, path inside)
    pub(super) binds: Vec<(PathBuf, PathBuf)>,
    /// (what the link says, path of the link)
    pub(super) links: Vec<(PathBuf, PathBuf)>,
}

/// An existing directory; it is covered in the warden's own mount namespace only.
const STAGE: &str = "/tmp";
const FOLDERS: [&str; 16] = [
    "files",
    "tmp",
    "home",
    "home/user",
    "proc",
    "sys",
    "dev",
    "dev/shm",
    "run",
    "var",
    "var/tmp",
    "room",
    "etc",
    "old",
    "opt/layers",
    "opt/packages",
];
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
];
const FILES: [(&str, &str); 6] = [
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/bash\n\
         nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    ),
    ("etc/group", "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"),
    ("etc/hosts", "127.0.0.1 localhost sandbox\n"),
    ("etc/hostname", "sandbox\n"),
    ("etc/resolv.conf", ""),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
];

/// What a room needs to know of the template that it was cloned from.
pub(super) struct Template {
    /// The host's /proc: id maps are written through it, since a room's own is read-only.
    pub(super) host_proc: OwnedFd,
    /// Whether a fresh /proc can be mounted here; some containers forbid it.
    pub(super) own_proc: bool,
    /// Whether all layers of packages stand here.
    pub(super) has_layers: bool,
    /// Whether this is the host's network.
    pub(super) network: bool,
}

/// Builds the template and makes it the root of this mount namespace. In order:
/// no mount of ours leaves the namespace · sources are opened · a tmpfs is the new root · folders,
/// generated files, binds, devices, links · proc · pivot · everything read-only and nosuid ·
/// writable tmpfs for the zygote alone.
pub(super) fn build(plan: &RootPlan, network: bool) -> Result<Template, StepError> {
    let host_proc = step("open /proc", open_path(Path::new("/proc")))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    step("make mounts private", rustix::mount::mount_change("/", private))?;
    let sources = open_sources(plan)?;
    mount_tmpfs(Path::new(STAGE), "mode=755,size=16m")?;
    for folder in FOLDERS {
        step("make folder", fs::create_dir_all(inside(folder)))?;
    }
    for (path, content) in FILES {
        step("write file", write_file(&inside(path), content))?;
    }
    step("write the guest's code", guest::write_code(&inside(guest::CODE_INSIDE)))?;
    for (source, target) in &sources {
        bind(source, &inside(target))?;
    }
    for (says, link) in &plan.links {
        step("make link", symlink(says, inside(link)))?;
    }
    for (says, link) in DEVICE_LINKS {
        step("make link", symlink(says, inside(link)))?;
    }
    let own_proc = mount_proc(&inside("proc"), MountFlags::empty()).is_ok();
    pivot()?;
    let sealed = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID;
    step("make root read-only", sys::mount_setattr(Path::new("/"), sealed, 0, true))?;
    mount_tmpfs(Path::new("/tmp"), "mode=755,size=32m")?;
    mount_tmpfs(Path::new("/home/user"), "mode=755,size=32m")?;
    if own_proc {
        // forks of the zygote lower their oom score through it, before they move out
        let writable = sys::mount_setattr(Path::new("/proc"), 0, libc::MOUNT_ATTR_RDONLY, false);
        step("make proc writable", writable)?;
    }
    let has_layers = plan.binds.iter().any(|(_, target)| target == Path::new(layers::ALL_INSIDE));
    Ok(Template { host_proc, own_proc, has_layers, network })
}

/// A proc of this pid namespace.
pub(super) fn mount_proc(target: &Path, more: MountFlags) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | more;
    Ok(rustix::mount::mount("proc", target, "proc", flags, None)?)
}

/// Opens a path for use as a mount source or a place, without following it as a link.
pub(super) fn open_path(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Sources are opened before the stage covers a part of the host that may hold them.
fn open_sources(plan: &RootPlan) -> Result<Vec<(OwnedFd, PathBuf)>, StepError> {
    let mut sources = Vec::new();
    for (source, target) in &plan.binds {
        sources.push((
            step(&format!("open {}", source.display()), open_path(source))?,
            target.clone(),
        ));
    }
    for device in DEVICES {
        let source = Path::new("/dev").join(device);
        sources.push((step(&format!("open {}", source.display()), open_path(&source))?, source));
    }
    Ok(sources)
}

fn inside(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    Path::new(STAGE).join(path.strip_prefix("/").unwrap_or(path))
}

fn write_file(path: &Path, content: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content)
}

fn bind(source: &OwnedFd, target: &Path) -> Result<(), StepError> {
    let source = format!("/proc/self/fd/{}", source.as_raw_fd());
    let is_folder = fs::metadata(&source).is_ok_and(|metadata| metadata.is_dir());
    let made = if is_folder { fs::create_dir_all(target) } else { write_file(target, "") };
    step("make mount point", made)?;
    step(
        &format!("bind {}", target.display()),
        rustix::mount::mount_bind_recursive(source.as_str(), target),
    )
}

fn mount_tmpfs(target: &Path, options: &str) -> Result<(), StepError> {
    let options = step("tmpfs options", std::ffi::CString::new(options))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    step(
        &format!("mount tmpfs on {}", target.display()),
        rustix::mount::mount("tmpfs", target, "tmpfs", flags, Some(options.as_c_str())),
    )
}

fn pivot() -> Result<(), StepError> {
    step("enter new root", std::env::set_current_dir(STAGE))?;
    step("pivot_root", rustix::process::pivot_root(".", "old"))?;
    step("enter new root", std::env::set_current_dir("/"))?;
    step("leave old root", rustix::mount::unmount("/old", UnmountFlags::DETACH))?;
    step("remove old root", fs::remove_dir("/old"))
}
