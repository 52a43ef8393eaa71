//! Looks at sessions whose limits nothing else holds as a whole.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::cgroup::Controller;
use super::handle::{Exceeded, Room};
use crate::sandbox::host::folders::Used;

const EVERY: Duration = Duration::from_millis(200);
const FOLDERS_EVERY: Duration = Duration::from_secs(1);
/// How often a watch without rooms sees whether it is still wanted.
const IDLE: Duration = Duration::from_secs(10);
/// What the warm Python may take besides: a process meets its own limit first and can go on.
const WARM_BYTES: u64 = 128 << 20;
/// The longest way from a process to the first one of its room.
const MAX_ANCESTORS: usize = 256;
/// The most entries of a folder that are counted; more are too many anyway.
const MAX_ENTRIES: u64 = 1 << 20;

/// The rooms that are looked at every 200 ms while there are any.
#[derive(Default)]
pub(super) struct Watch {
    rooms: Mutex<Vec<Weak<Room>>>,
    more: Notify,
}

/// The processes of this host at one moment.
pub(super) struct Processes(HashMap<i32, Process>);

#[derive(Debug, PartialEq, Eq)]
struct Process {
    /// It has ended and waits for its parent: its files are closed and cannot be looked at.
    ended: bool,
    parent: i32,
    group: i32,
    threads: u64,
    resident_bytes: u64,
}

impl Watch {
    /// A watch that looks for as long as somebody holds it.
    pub(super) fn start() -> Arc<Self> {
        let watch = Arc::new(Self::default());
        tokio::spawn(keep_looking(Arc::downgrade(&watch), EVERY, look_at_processes));
        tokio::spawn(keep_looking(Arc::downgrade(&watch), FOLDERS_EVERY, look_at_folders));
        watch
    }

    /// Looks at this room too, until it is dropped.
    pub(super) fn add(&self, room: &Arc<Room>) {
        self.list().push(Arc::downgrade(room));
        self.more.notify_waiters();
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Room>>> {
        self.rooms.lock().expect("no panic while the list is held")
    }

    fn living(&self) -> Vec<Arc<Room>> {
        let mut rooms = self.list();
        rooms.retain(|room| room.strong_count() > 0);
        rooms.iter().filter_map(Weak::upgrade).collect()
    }
}

async fn keep_looking(watch: Weak<Watch>, every: Duration, look: fn(&[Arc<Room>])) {
    loop {
        let Some(held) = watch.upgrade() else { return };
        let rooms = held.living();
        if rooms.is_empty() {
            let _ = tokio::time::timeout(IDLE, held.more.notified()).await;
            continue;
        }
        drop(held);
        if let Err(error) = tokio::task::spawn_blocking(move || look(&rooms)).await {
            tracing::error!(%error, "sessions cannot be looked at: their limits do not hold");
        }
        tokio::time::sleep(every).await;
    }
}

fn look_at_processes(rooms: &[Arc<Room>]) {
    let processes = Processes::now();
    for room in rooms {
        if let Some(exceeded) = processes.exceeded_by(room) {
            room.kill_for(exceeded);
        }
    }
}

/// Apart from the other look, which must not wait for it.
fn look_at_folders(rooms: &[Arc<Room>]) {
    let processes = Processes::now();
    for room in rooms {
        if let Some(exceeded) = disk_exceeded_by(room, &processes) {
            room.kill_for(exceeded);
        }
    }
}

/// Everything that its folder and open files without a name take.
fn disk_exceeded_by(room: &Room, processes: &Processes) -> Option<Exceeded> {
    let (folder, limits) = (room.folder()?, &room.limits);
    let most = limits.inodes.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES);
    let mut used = Used::default();
    let whole = used.add(folder, most);
    let unnamed = processes.unnamed_bytes(room);
    // a process that is ending cannot be looked into either, but is gone at the next look
    if unnamed.is_none() && !room.was_seen_whole(false) {
        return Some(Exceeded::Disk);
    }
    if unnamed.is_some() {
        room.was_seen_whole(true);
    }
    let bytes = used.bytes.saturating_add(unnamed.unwrap_or_default());
    let full = !whole || limits.disk_bytes.is_some_and(|most| bytes > most);
    full.then_some(Exceeded::Disk)
}

impl Processes {
    /// Reads them from /proc.
    pub(super) fn now() -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = entries.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, process(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
        });
        Self(processes.collect())
    }

    /// Threads of all processes that a user has.
    pub(super) fn threads_of(&self, user: u32) -> u64 {
        let is_theirs = |pid: &i32| {
            fs::metadata(format!("/proc/{pid}")).is_ok_and(|metadata| metadata.uid() == user)
        };
        self.0.iter().filter(|(pid, _)| is_theirs(pid)).map(|(_, process)| process.threads).sum()
    }

    /// What open files take that have no name any more; None when that cannot be seen.
    fn unnamed_bytes(&self, room: &Room) -> Option<u64> {
        let mut seen = HashSet::new();
        let mut bytes = 0;
        let members = self.0.iter().filter(|(pid, it)| self.is_of(**pid, it, room.first));
        // the first one is the room's keeper, which is ours
        for (pid, _) in members.filter(|(pid, it)| !it.ended && **pid != room.first[0]) {
            let open = match fs::read_dir(format!("/proc/{pid}/fd")) {
                Ok(open) => open,
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return None,
                Err(_) => continue, // it has ended
            };
            for file in open.flatten().filter_map(|file| fs::metadata(file.path()).ok()) {
                let is_unnamed = file.is_file() && file.nlink() == 0;
                if is_unnamed && seen.insert((file.dev(), file.ino())) {
                    bytes += file.blocks() * 512;
                }
            }
        }
        Some(bytes)
    }

    fn exceeded_by(&self, room: &Room) -> Option<Exceeded> {
        let members: Vec<_> =
            self.0.iter().filter(|(pid, process)| self.is_of(**pid, process, room.first)).collect();
        let threads: u64 = members.iter().map(|(_, process)| process.threads).sum();
        // one more is the room's init or keeper
        let uncounted = room.folder().is_some() && !room.is_held_by_cgroup(Controller::Pids);
        if uncounted && room.limits.processes.is_some_and(|most| threads > most + 1) {
            return Some(Exceeded::Processes);
        }
        let most = room.limits.memory_bytes;
        let most = most.filter(|_| !room.is_held_by_cgroup(Controller::Memory))?;
        let most = most.saturating_add(WARM_BYTES);
        let files = room.bytes_in_tmpfs();
        let resident: u64 = members.iter().map(|(_, process)| process.resident_bytes).sum();
        if resident + files <= most {
            return None;
        }
        // pages that processes share were counted for each: what is theirs takes longer to find out
        let shares: u64 = members
            .iter()
            .map(|(pid, _)| proportional_bytes(**pid).unwrap_or(0)) // it has ended meanwhile
            .sum();
        (shares + files > most).then_some(Exceeded::Memory)
    }

    /// True for a process that comes from one of the first processes of a room.
    fn is_of(&self, pid: i32, process: &Process, first: [i32; 2]) -> bool {
        let (mut pid, mut process) = (pid, process);
        for _ in 0..MAX_ANCESTORS {
            if first.contains(&pid) || first.contains(&process.group) {
                return true;
            }
            pid = process.parent;
            let Some(parent) = self.0.get(&pid) else { return false };
            process = parent;
        }
        false
    }
}

/// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html; the name may hold anything.
fn process(stat: &str) -> Option<Process> {
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<i64>().ok();
    Some(Process {
        ended: matches!(fields.first(), Some(&"Z" | &"X")),
        parent: number(1)? as i32,
        group: number(2)? as i32,
        threads: number(17)? as u64,
        resident_bytes: number(21)? as u64 * rustix::param::page_size() as u64,
    })
}

fn proportional_bytes(pid: i32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "77 (a) b (c) S 5 70 70 0 -1 4194560 1 0 0 0 0 0 0 0 25 5 3 0 9 1000 42 184 1";

    fn of(parent: i32, group: i32) -> Process {
        Process { ended: false, parent, group, threads: 1, resident_bytes: 0 }
    }

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let resident_bytes = 42 * rustix::param::page_size() as u64;
        assert_eq!(
            process(STAT),
            Some(Process { ended: false, parent: 5, group: 70, threads: 3, resident_bytes })
        );
        assert_eq!(process("77 (x"), None);
    }

    #[test]
    fn processes_belong_to_a_room_by_descent_or_by_group() {
        let table = [
            (10, of(1, 10)),  // room's init
            (20, of(5, 20)),  // kernel
            (21, of(20, 20)), // its child
            (22, of(21, 22)), // grandchild in a group of its own
            (30, of(10, 30)), // orphan
            (40, of(5, 20)),  // orphan without namespaces
            (50, of(1, 50)),  // somebody else
        ];
        let processes = Processes(table.into());
        let mut found: Vec<_> = processes
            .0
            .iter()
            .filter(|(pid, process)| processes.is_of(**pid, process, [10, 20]))
            .map(|(pid, _)| *pid)
            .collect();
        found.sort_unstable();
        assert_eq!(found, [10, 20, 21, 22, 30, 40]);
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let processes = Processes([(1, of(2, 1)), (2, of(1, 2))].into());
        assert!(!processes.is_of(1, &processes.0[&1], [10, 20]));
    }
}
