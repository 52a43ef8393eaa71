//! The limits of a session: what is asked for, what is given, how it is held.

use super::cgroup::Bounds;
use super::wire::SpawnRequest;
use crate::config::LocalSettings;
use crate::domain::id::ExecutionId;
use crate::domain::limits::{Limits, LimitsRequest};
use crate::sandbox::SandboxError;

/// Address space that may be reserved beyond the memory where a cgroup counts what is used: stacks
/// of threads and arenas of allocators are mostly that. What is far beyond it fails at once.
const RESERVED_BYTES: u64 = 8 << 30;
/// Timers are counted with them.
const QUEUED_SIGNALS: u64 = 1024;
/// 0 would still let a core go to a program of the host; at 1 the kernel makes none.
const NO_CORE: u64 = 1;
const LARGEST_STACK: u64 = 64 << 20;

/// The most that a session may have: the configuration's word.
pub(super) fn most(settings: &LocalSettings, output_bytes: u64) -> Limits {
    Limits {
        memory_bytes: Some(settings.local_memory_bytes),
        disk_bytes: Some(settings.local_disk_bytes),
        inodes: Some(settings.local_inodes),
        file_bytes: Some(settings.local_file_bytes),
        processes: Some(settings.local_processes),
        open_files: Some(settings.local_open_files),
        cpu_percent: Some(settings.local_cpu_percent),
        output_bytes: Some(output_bytes),
    }
}

/// What a session gets that asks for this; more than the most, or less than makes sense, is refused.
pub(super) fn granted(most: &Limits, asked: &LimitsRequest) -> Result<Limits, SandboxError> {
    Ok(Limits {
        memory_bytes: within(
            "/limits/memory_bytes",
            asked.memory_bytes,
            64 << 20,
            most.memory_bytes,
        )?,
        disk_bytes: within("/limits/disk_bytes", asked.disk_bytes, 1 << 20, most.disk_bytes)?,
        inodes: within("/limits/inodes", asked.inodes, 64, most.inodes)?,
        file_bytes: within("/limits/file_bytes", asked.file_bytes, 1 << 20, most.file_bytes)?,
        processes: within("/limits/processes", asked.processes, 8, most.processes)?,
        open_files: within("/limits/open_files", asked.open_files, 64, most.open_files)?,
        cpu_percent: within("/limits/cpu_percent", asked.cpu_percent, 5, most.cpu_percent)?,
        output_bytes: within("/limits/output_bytes", asked.output_bytes, 1024, most.output_bytes)?,
    })
}

fn within(
    limit: &'static str,
    asked: Option<u64>,
    least: u64,
    most: Option<u64>,
) -> Result<Option<u64>, SandboxError> {
    let Some(most) = most else { return Ok(None) };
    match asked {
        None => Ok(Some(most)),
        Some(asked) if (least..=most).contains(&asked) => Ok(Some(asked)),
        Some(_) => Err(SandboxError::LimitOutOfRange { limit, least, most }),
    }
}

/// What the processes of a session may take together.
pub(super) fn together(limits: &Limits) -> Bounds {
    Bounds {
        memory_bytes: limits.memory_bytes.unwrap_or(u64::MAX),
        processes: limits.processes.unwrap_or(u64::MAX),
        cpu_percent: limits.cpu_percent.unwrap_or(u64::MAX),
    }
}

/// How a room and its kernel are made under these limits. `counted`: a cgroup counts the memory
/// that is used, so the address space need not be held so tightly.
pub(super) fn spawn_request(limits: &Limits, counted: bool) -> SpawnRequest {
    let unlimited = u64::MAX >> 1;
    let memory_bytes = limits.memory_bytes.unwrap_or(unlimited);
    let rlimits = [
        ("core", NO_CORE),
        ("nofile", limits.open_files.unwrap_or(unlimited)),
        ("nproc", limits.processes.unwrap_or(unlimited)),
        ("memlock", 1 << 20),
        ("sigpending", QUEUED_SIGNALS),
        ("msgqueue", 0),
        ("stack", LARGEST_STACK),
        ("fsize", limits.file_bytes.unwrap_or(unlimited)),
    ];
    SpawnRequest {
        id: ExecutionId::new().to_string(),
        disk_bytes: limits.disk_bytes.unwrap_or(unlimited),
        inodes: limits.inodes.unwrap_or(unlimited),
        address_bytes: if counted {
            memory_bytes.saturating_add(RESERVED_BYTES)
        } else {
            memory_bytes
        },
        limits: rlimits.map(|(name, value)| (name.to_owned(), value)).into(),
        folder: None,
        slot: 0,
        layer: None,
        packages: None,
        primed: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_gets_what_it_asks_for_and_else_the_most() {
        let most = Limits { processes: Some(128), inodes: Some(1000), ..Limits::default() };
        let asked = LimitsRequest { processes: Some(8), ..LimitsRequest::default() };
        let granted = granted(&most, &asked).expect("within");
        assert_eq!(granted, Limits { processes: Some(8), ..most });
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        let most = Limits { cpu_percent: Some(100), ..Limits::default() };
        for wrong in [4, 101] {
            let asked = LimitsRequest { cpu_percent: Some(wrong), ..LimitsRequest::default() };
            let refused = granted(&most, &asked).expect_err("out of range");
            let SandboxError::LimitOutOfRange { limit, least, most } = refused else {
                panic!("{refused}")
            };
            assert_eq!((limit, least, most), ("/limits/cpu_percent", 5, 100));
        }
    }

    #[test]
    fn without_a_cgroup_the_address_space_is_the_limit_of_memory() {
        let limits = Limits { memory_bytes: Some(1 << 20), ..Limits::default() };
        assert_eq!(spawn_request(&limits, false).address_bytes, 1 << 20);
        assert_eq!(spawn_request(&limits, true).address_bytes, (1 << 20) + RESERVED_BYTES);
    }
}
