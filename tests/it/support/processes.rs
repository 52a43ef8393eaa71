//! Processes of the host, as the tests see them.

use std::time::Duration;

/// Processes that a service, known by its pid, has below it, ended ones left out.
pub fn descendants(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        let ended = fields.next()? == "Z";
        fields.next()?.parse::<u32>().ok().filter(|_| !ended)
    };
    let all: Vec<u32> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        let children = all.iter().filter(|candidate| parent(**candidate) == Some(found[next]));
        let new: Vec<u32> = children.copied().filter(|child| !found.contains(child)).collect();
        found.extend(new);
        next += 1;
    }
    found.remove(0);
    found
}

/// Waits until none of these processes is there any more (or only as a zombie).
pub fn all_gone(pids: &[u32]) {
    let started = std::time::Instant::now();
    let lives = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
    };
    while pids.iter().any(lives) {
        assert!(started.elapsed() < Duration::from_secs(10), "processes are left");
        std::thread::yield_now();
    }
}
