//! Cgroups: what a session may take as a whole.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::hierarchy::{Hierarchy, Version};
use crate::config::User;

/// The folder of this program below the cgroup that it was started in.
const OURS: &str = "interpreterd";
/// Where the service itself is in cgroup v2.
const LEAF: &str = "service";
/// More than the file that counts kills has.
const OOM_BYTES: usize = 512;
const PERIOD_MICROSECONDS: u64 = 100_000;

/// What a cgroup limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Controller {
    Memory,
    Pids,
    Cpu,
}

/// The most that the processes of a session may take together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) memory_bytes: u64,
    /// Processes and threads, the room's init not counted.
    pub(super) processes: u64,
    /// 100 is one whole processor.
    pub(super) cpu_percent: u64,
}

/// The places where this process makes cgroups for its sessions.
#[derive(Debug, Default)]
pub struct Cgroups {
    places: Vec<Place>,
    /// Folders that could not be removed yet.
    left: Mutex<Vec<PathBuf>>,
}

/// A folder of one hierarchy in which this process may make cgroups.
#[derive(Debug)]
struct Place {
    version: Version,
    folder: PathBuf,
    controllers: Vec<Controller>,
}

/// The cgroups of one session, one a hierarchy; removed with this value.
#[derive(Debug)]
pub(super) struct Cgroup {
    owner: Arc<Cgroups>,
    folders: Vec<PathBuf>,
    members: Vec<OwnedFd>,
    oom: Option<fs::File>,
}

impl Controller {
    pub(super) const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// The name that the kernel gives it.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    /// Files and their values, in the order in which they must be written; those marked false may
    /// be missing.
    fn values(self, version: Version, bounds: &Bounds) -> Vec<(&'static str, String, bool)> {
        let memory = bounds.memory_bytes.to_string();
        let quota = bounds.cpu_percent * PERIOD_MICROSECONDS / 100;
        match (self, version) {
            (Self::Memory, Version::V1) => vec![
                // counted apart, and only once it is limited
                ("memory.kmem.tcp.limit_in_bytes", (bounds.memory_bytes / 4).to_string(), false),
                ("memory.limit_in_bytes", memory.clone(), true),
                ("memory.memsw.limit_in_bytes", memory, false),
            ],
            (Self::Memory, Version::V2) => {
                vec![("memory.max", memory, true), ("memory.swap.max", "0".to_owned(), false)]
            }
            // the room's init is one more
            (Self::Pids, _) => vec![("pids.max", (bounds.processes + 1).to_string(), true)],
            (Self::Cpu, Version::V1) => vec![
                ("cpu.cfs_period_us", PERIOD_MICROSECONDS.to_string(), true),
                ("cpu.cfs_quota_us", quota.to_string(), true),
            ],
            (Self::Cpu, Version::V2) => {
                vec![("cpu.max", format!("{quota} {PERIOD_MICROSECONDS}"), true)]
            }
        }
    }
}

impl Cgroups {
    /// Finds where cgroups can be made and hands those places to the user that the service becomes.
    /// What the host does not allow is left out: other limits hold then.
    pub(super) fn prepare(user: User) -> Self {
        let mut places: Vec<Place> = Vec::new();
        for hierarchy in Hierarchy::all() {
            let taken = |controller: &Controller| {
                places.iter().any(|place| place.controllers.contains(controller))
            };
            let controllers: Vec<_> =
                hierarchy.controllers.iter().copied().filter(|c| !taken(c)).collect();
            if controllers.is_empty() {
                continue;
            }
            match take_place(&hierarchy, &controllers, user) {
                Ok((folder, controllers)) => {
                    places.push(Place { version: hierarchy.version, folder, controllers });
                }
                Err(error) => {
                    tracing::debug!(%error, folder = %hierarchy.own.display(), "no cgroups here");
                }
            }
        }
        Self { places, left: Mutex::default() }
    }

    /// True when none can be made here.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// By what a limit is held: `cgroup1`, `cgroup2`, or None when not by a cgroup.
    pub(super) fn holds(&self, controller: Controller) -> Option<&'static str> {
        let place = self.places.iter().find(|place| place.controllers.contains(&controller))?;
        Some(match place.version {
            Version::V1 => "cgroup1",
            Version::V2 => "cgroup2",
        })
    }

    /// Makes the cgroups of one session.
    pub(super) fn make(self: &Arc<Self>, name: &str, bounds: &Bounds) -> io::Result<Cgroup> {
        self.sweep();
        let mut made =
            Cgroup { owner: Arc::clone(self), folders: Vec::new(), members: Vec::new(), oom: None };
        for place in &self.places {
            let folder = place.folder.join(name);
            fs::create_dir(&folder)?;
            made.folders.push(folder.clone());
            for controller in &place.controllers {
                for (file, value, needed) in controller.values(place.version, bounds) {
                    let written = fs::write(folder.join(file), value);
                    if needed {
                        written?;
                    }
                }
            }
            if place.controllers.contains(&Controller::Memory) {
                made.oom = Some(fs::File::open(folder.join(oom_file(place.version)))?);
            }
            let members = folder.join(members_file(place.version));
            let members = fs::OpenOptions::new().write(true).open(members)?;
            made.members.push(members.into());
        }
        Ok(made)
    }

    /// Removes what was still in use when its session ended.
    fn sweep(&self) {
        let mut left = self.left.lock().expect("no panic while the list is held");
        left.retain(|folder| !is_removed(folder));
    }
}

/// What a process with one thread writes to in order to join. Moving by `cgroup.procs` waits for all
/// of the host's threads, which takes milliseconds; by v1's `tasks` a thread that moves itself does not.
const fn members_file(version: Version) -> &'static str {
    match version {
        Version::V1 => "tasks",
        Version::V2 => "cgroup.procs",
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.sweep();
        for place in &self.places {
            let _ = fs::remove_dir(&place.folder);
        }
    }
}

impl Cgroup {
    /// What a process writes "0" to in order to join.
    pub(super) fn members(&self) -> &[OwnedFd] {
        &self.members
    }

    pub(super) fn holds(&self, controller: Controller) -> bool {
        self.owner.holds(controller).is_some()
    }

    /// How many processes the kernel has killed because memory was used up.
    pub(super) fn oom_kills(&self) -> u64 {
        let Some(file) = &self.oom else { return 0 };
        let mut text = [0; OOM_BYTES];
        let length = file.read_at(&mut text, 0).unwrap_or(0);
        oom_kills_in(&String::from_utf8_lossy(&text[..length]))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let mut left = self.owner.left.lock().expect("no panic while the list is held");
        left.extend(self.folders.drain(..).filter(|folder| !is_removed(folder)));
    }
}

const fn oom_file(version: Version) -> &'static str {
    match version {
        Version::V1 => "memory.oom_control",
        Version::V2 => "memory.events",
    }
}

fn oom_kills_in(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn is_removed(folder: &Path) -> bool {
    match fs::remove_dir(folder) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Makes this process's folder in a hierarchy, with the controllers that can be had there.
fn take_place(
    hierarchy: &Hierarchy,
    controllers: &[Controller],
    user: User,
) -> io::Result<(PathBuf, Vec<Controller>)> {
    match hierarchy.version {
        Version::V1 => {
            let folder = own_folder(&hierarchy.own, user, &[""])?;
            Ok((folder, controllers.to_vec()))
        }
        Version::V2 => take_unified(hierarchy, controllers, user),
    }
}

/// In cgroup v2 a cgroup with processes passes no controllers on, and a process may only be moved
/// below a cgroup whose `cgroup.procs` its mover may write. So this process moves into a leaf beside
/// its sessions. https://docs.kernel.org/admin-guide/cgroup-v2.html#delegation
fn take_unified(
    hierarchy: &Hierarchy,
    controllers: &[Controller],
    user: User,
) -> io::Result<(PathBuf, Vec<Controller>)> {
    let (parent, alone) = parent_of_ours(hierarchy, controllers)?;
    if !listed(&parent.join("cgroup.controllers"), controllers).is_empty() && alone {
        move_into(&parent.join(LEAF))?;
    }
    let had = pass_on(&parent, controllers);
    if had.is_empty() {
        return Err(io::Error::other("no controller is passed on"));
    }
    let folder = own_folder(&parent, user, &["", "cgroup.procs", "cgroup.subtree_control"])?;
    let had = pass_on(&folder, &had);
    if alone {
        // the common ancestor of the service and its sessions
        give(&parent.join("cgroup.procs"), user)?;
    } else {
        move_into(&folder.join(LEAF))?;
    }
    Ok((folder, had))
}

/// Where our folder goes, and whether this process must leave that cgroup first: one that passes
/// controllers on may hold no processes, the root of the host apart. Changes nothing.
fn parent_of_ours(
    hierarchy: &Hierarchy,
    controllers: &[Controller],
) -> io::Result<(PathBuf, bool)> {
    let own = &hierarchy.own;
    if is_root(own) || alone_in(own)? {
        return Ok((own.clone(), !is_root(own)));
    }
    // its manager ends a unit by its cgroup: what has left it would live on
    if own.extension().is_some_and(|kind| kind == "service") {
        return Err(io::Error::other("other processes are in the cgroup of the service's unit"));
    }
    let above = own.ancestors().skip(1).take_while(|folder| folder.starts_with(&hierarchy.top));
    let usable = above.filter(|folder| {
        let members = fs::read_to_string(folder.join("cgroup.procs"));
        (is_root(folder) || members.is_ok_and(|members| members.is_empty()))
            && ["", "cgroup.procs"].iter().all(|name| is_writable(&folder.join(name)))
    });
    let has = |folder: &&Path| listed(&folder.join("cgroup.controllers"), controllers).len();
    // the nearest of those that have the most
    let parent = usable.collect::<Vec<_>>().into_iter().rev().max_by_key(has);
    let parent = parent.ok_or_else(|| io::Error::other("no cgroup above may be used"))?;
    Ok((parent.to_owned(), false))
}

/// True for the root of the host, which alone has no type.
fn is_root(folder: &Path) -> bool {
    !folder.join("cgroup.type").exists()
}

fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

fn move_into(leaf: &Path) -> io::Result<()> {
    create(leaf)?;
    fs::write(leaf.join("cgroup.procs"), "0")
}

/// True when no other process than this one is in a cgroup.
fn alone_in(folder: &Path) -> io::Result<bool> {
    let members = fs::read_to_string(folder.join("cgroup.procs"))?;
    let own = std::process::id().to_string();
    Ok(members.lines().all(|member| member == own))
}

/// Lets children of a cgroup use controllers; gives those that they can.
fn pass_on(folder: &Path, controllers: &[Controller]) -> Vec<Controller> {
    let switch = folder.join("cgroup.subtree_control");
    for controller in controllers {
        let _ = fs::write(&switch, format!("+{}", controller.word()));
    }
    listed(&switch, controllers)
}

/// Those of the controllers that a file names.
fn listed(file: &Path, controllers: &[Controller]) -> Vec<Controller> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let named: Vec<_> = text.split_whitespace().collect();
    controllers.iter().copied().filter(|controller| named.contains(&controller.word())).collect()
}

/// `interpreterd/PID` below a cgroup, handed to the user; those of processes that are gone go.
fn own_folder(parent: &Path, user: User, handed: &[&str]) -> io::Result<PathBuf> {
    let ours = parent.join(OURS);
    create(&ours)?;
    give(&ours, user)?;
    pass_on(&ours, &Controller::ALL);
    let own_name = std::process::id().to_string();
    for entry in fs::read_dir(&ours)?.flatten() {
        let name = entry.file_name();
        // of our own number: left by another process of a container that starts again
        let ended =
            name.to_str() == Some(own_name.as_str()) || !Path::new("/proc").join(&name).exists();
        if entry.path().is_dir() && ended {
            remove_tree(&entry.path());
        }
    }
    let folder = ours.join(&own_name);
    create(&folder)?;
    for name in handed {
        give(&folder.join(name), user)?;
    }
    Ok(folder)
}

/// Cgroups that are in use stay: the kernel removes empty ones only.
fn remove_tree(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let _ = fs::remove_dir(entry.path());
    }
    let _ = fs::remove_dir(folder);
}

fn create(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn give(path: &Path, user: User) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { memory_bytes: 1 << 20, processes: 7, cpu_percent: 50 };

    fn written(controller: Controller, version: Version) -> Vec<String> {
        let values = controller.values(version, &BOUNDS);
        values.into_iter().map(|(file, value, _)| format!("{file}={value}")).collect()
    }

    #[test]
    fn limits_are_written_as_each_version_wants_them() {
        use Controller::{Cpu, Memory, Pids};
        use Version::{V1, V2};
        assert_eq!(
            written(Memory, V1),
            [
                "memory.kmem.tcp.limit_in_bytes=262144",
                "memory.limit_in_bytes=1048576",
                "memory.memsw.limit_in_bytes=1048576"
            ]
        );
        assert_eq!(written(Memory, V2), ["memory.max=1048576", "memory.swap.max=0"]);
        assert_eq!(written(Pids, V2), ["pids.max=8"]);
        assert_eq!(written(Cpu, V1), ["cpu.cfs_period_us=100000", "cpu.cfs_quota_us=50000"]);
        assert_eq!(written(Cpu, V2), ["cpu.max=50000 100000"]);
    }

    #[test]
    fn oom_kills_are_counted_in_both_versions() {
        assert_eq!(oom_kills_in("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(oom_kills_in("low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n"), 2);
        assert_eq!(oom_kills_in(""), 0);
    }
}
