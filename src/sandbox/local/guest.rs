//! The guest Python that is installed: where it is and what a room needs of it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::root::RootPlan;

/// The packages of the guest, locked with hashes.
pub(super) const LOCK: &str = include_str!("../../../guest/requirements.lock");
/// Written last: a folder without it is no guest.
pub(super) const MANIFEST: &str = "guest.json";
/// Where the guest stands inside a room.
pub(super) const INSIDE: &str = "/opt/venv";

/// Where the code of ours that the guest runs stands inside a room.
pub(super) const CODE_INSIDE: &str = "/opt/interpreterd";
const CODE: [(&str, &str); 22] = [
    ("packages.txt", include_str!("../../../guest/requirements.in")),
    ("interpreterd_guest/__init__.py", include_str!("guest/__init__.py")),
    ("interpreterd_guest/channel.py", include_str!("guest/channel.py")),
    ("interpreterd_guest/command.py", include_str!("guest/command.py")),
    ("interpreterd_guest/figures.py", include_str!("guest/figures.py")),
    ("interpreterd_guest/fonts.py", include_str!("guest/fonts.py")),
    ("interpreterd_guest/hints.py", include_str!("guest/hints.py")),
    ("interpreterd_guest/installer.py", include_str!("guest/installer.py")),
    ("interpreterd_guest/jail.py", include_str!("guest/jail.py")),
    ("interpreterd_guest/kernel.py", include_str!("guest/kernel.py")),
    ("interpreterd_guest/loops.py", include_str!("guest/loops.py")),
    ("interpreterd_guest/shell.py", include_str!("guest/shell.py")),
    ("interpreterd_guest/terminal.py", include_str!("guest/terminal.py")),
    ("interpreterd_guest/zygote.py", include_str!("guest/zygote.py")),
    ("shadow/sitecustomize.py", include_str!("guest/shadow/sitecustomize.py")),
    ("shadow/pip/__init__.py", include_str!("guest/shadow/pip/__init__.py")),
    ("shadow/pip/__main__.py", include_str!("guest/shadow/pip/__main__.py")),
    ("shadow/bin/pip", include_str!("guest/shadow/bin/pip")),
    ("shadow/bin/pip3", include_str!("guest/shadow/bin/pip")),
    ("shadow/bin/vi", include_str!("guest/shadow/bin/vi")),
    ("shadow/bin/vim", include_str!("guest/shadow/bin/vi")),
    ("shadow/bin/nano", include_str!("guest/shadow/bin/vi")),
];

/// What of the host a room sees besides the guest: programs and libraries, never `/etc` as a whole.
const HOST_FOLDERS: [&str; 1] = ["/usr"];
const HOST_LINKS: [&str; 7] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/libo32"];
const HOST_ETC: [&str; 6] = [
    "/etc/ld.so.cache",
    "/etc/fonts",
    "/etc/ssl/certs",
    "/etc/alternatives",
    "/etc/mime.types",
    // programs that ask for the number of cores
    "/sys/devices/system/cpu",
];
/// What programs look up besides, where there is no generated `/etc`.
const HOST_ETC_OPEN: [&str; 5] =
    ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/inputrc"];

/// Why there is no guest Python to use.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// None is installed for the packages that this version of the service wants.
    #[error("no guest Python in {}: run `interpreterd guest install` (or `make guest`)", .0.display())]
    Missing(PathBuf),
    /// One is there and cannot be read.
    #[error("the guest Python in {} cannot be read", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
}

/// An installed guest Python.
#[derive(Debug, Clone)]
pub(super) struct Guest {
    folder: PathBuf,
    manifest: Manifest,
}

/// What the installation noted down.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Such as 3.11.2.
    pub(super) python: String,
    /// Where the standard library of the Python below the venv stands.
    pub(super) base_prefix: PathBuf,
}

impl Guest {
    /// The guest for this service's lock, whichever Python it was built on; the newest wins.
    pub(super) fn find(folder: &Path) -> Result<Self, GuestError> {
        let missing = || GuestError::Missing(folder.to_owned());
        let unreadable = |error| GuestError::Unreadable(folder.to_owned(), error);
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            other => other.map_err(unreadable)?,
        };
        let mut found: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.join(MANIFEST).is_file() && is_current(path))
            .collect();
        found.sort();
        let newest = found.pop().ok_or_else(missing)?;
        let manifest = fs::read(newest.join(MANIFEST)).map_err(unreadable)?;
        let manifest =
            serde_json::from_slice(&manifest).map_err(|error| unreadable(error.into()))?;
        Ok(Self { folder: newest, manifest })
    }

    /// The folder of its programs on the host.
    pub(super) fn programs(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// What a session without a root of its own may read. Only what this host has.
    pub(super) fn readable(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.folder.clone(), self.manifest.base_prefix.clone()];
        let host = HOST_FOLDERS.iter().chain(&HOST_LINKS).chain(&HOST_ETC).chain(&HOST_ETC_OPEN);
        paths.extend(host.map(PathBuf::from).filter(|path| path.exists()));
        paths
    }

    /// What a room's root is made of. Only what this host has.
    pub(super) fn root_plan(&self) -> RootPlan {
        let mut binds = vec![(self.folder.clone(), PathBuf::from(INSIDE))];
        let mut links = vec![(PathBuf::from("/proc/mounts"), PathBuf::from("/etc/mtab"))];
        let same = |path: &str| (PathBuf::from(path), PathBuf::from(path));
        binds.extend(HOST_FOLDERS.map(same));
        for link in HOST_LINKS {
            match (fs::read_link(link), Path::new(link).is_dir()) {
                (Ok(target), _) => links.push((target, PathBuf::from(link))),
                (Err(_), true) => binds.push(same(link)),
                (Err(_), false) => {}
            }
        }
        binds.extend(HOST_ETC.into_iter().filter(|path| Path::new(path).exists()).map(same));
        let base = &self.manifest.base_prefix;
        if !base.starts_with("/usr") {
            binds.push((base.clone(), base.clone()));
        }
        RootPlan { binds, links }
    }
}

/// Writes the code of ours that the guest runs below a folder; what stands in a `bin` is a program.
pub(super) fn write_code(folder: &Path) -> io::Result<()> {
    for (name, content) in CODE {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, content)?;
        let mode = if name.starts_with("shadow/bin/") { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// The name of a guest's folder: which packages, which Python.
pub(super) fn folder_name(minor: u32) -> String {
    format!("{}-cp3{minor}", lock_hash())
}

fn is_current(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(&lock_hash()) && !name.ends_with(".partial")
}

fn lock_hash() -> String {
    Sha256::digest(LOCK).iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}
