//! What the kernel says of this process.

use std::fs;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

/// How much of the machine this process uses; None where the kernel does not say.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) resident_bytes: Option<u64>,
    pub(super) open_fds: Option<usize>,
    pub(super) max_fds: Option<u64>,
    pub(super) processors: Option<Duration>,
    /// In seconds since 1970.
    pub(super) started_at: Option<u64>,
}

impl Process {
    /// Reads a few small files of proc(5).
    pub(super) fn read() -> Self {
        let a_second = rustix::param::clock_ticks_per_second();
        let page_bytes = rustix::param::page_size() as u64;
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let stat = after_the_name(&stat);
        let booted_at = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_time(&text));
        let used = stat.get(USER_TICKS).zip(stat.get(SYSTEM_TICKS));
        let started = stat.get(START_TICKS).zip(booted_at);
        Self {
            resident_bytes: stat.get(RESIDENT_PAGES).map(|pages| pages * page_bytes),
            open_fds: fs::read_dir("/proc/self/fd").ok().map(Iterator::count),
            max_fds: getrlimit(Resource::Nofile).current,
            processors: used
                .map(|(user, system)| Duration::from_millis((user + system) * 1000 / a_second)),
            started_at: started.map(|(after_boot, booted_at)| booted_at + after_boot / a_second),
        }
    }
}

/// Places in /proc/self/stat after the name: proc_pid_stat(5) counts from 1, with two fields before.
const USER_TICKS: usize = 14 - 4;
const SYSTEM_TICKS: usize = 15 - 4;
const START_TICKS: usize = 22 - 4;
const RESIDENT_PAGES: usize = 24 - 4;

/// The numbers after the state, which follows the name; a name may hold anything.
fn after_the_name(stat: &str) -> Vec<u64> {
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split_whitespace().skip(1).map(|number| number.parse().unwrap_or_default()).collect()
}

fn boot_time(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_name_has_brackets_is_read() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 14 15 16 17 18 19 20 21 2200 23 24";
        let numbers = after_the_name(stat);
        let told = [USER_TICKS, SYSTEM_TICKS, START_TICKS, RESIDENT_PAGES].map(|at| numbers[at]);
        assert_eq!(told, [14, 15, 2200, 24]);
    }

    #[test]
    fn this_process_is_told_of() {
        let process = Process::read();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 1_000_000), "{process:?}");
        assert!(process.open_fds.is_some_and(|fds| fds >= 3), "{process:?}");
        assert!(process.started_at.is_some_and(|start| start > 1_700_000_000), "{process:?}");
        assert!(process.processors.is_some() && process.max_fds.is_some(), "{process:?}");
    }
}
