//! The system calls that a cell may make, as data.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use crate::domain::provider::IsolationLevel;

/// Programs as the kernel takes them, bytes of `struct sock_filter`.
#[derive(Default)]
pub(super) struct Filters {
    /// Installed once in the zygote and inherited by every fork: the allow-list, then ENOSYS.
    pub(super) zygote: Vec<Vec<u8>>,
    /// Installed by each kernel: takes back what the zygote needed to move it into its room.
    pub(super) session: Vec<Vec<u8>>,
}

/// user, pid, net, ipc, uts, cgroup, mount and time namespaces, and children of the own parent.
const CLONE_REFUSED: u64 = 0x7e02_0080 | libc::CLONE_PARENT as u64;
/// The same number everywhere, as all newer ones.
const SYS_FCHMODAT2: i64 = 452;
/// After the last call that this list has thought about.
const NEWER_CALLS: std::ops::Range<i64> = 450..512;
const SO_PEERPIDFD: i32 = 77;
const TIOCLINUX: u64 = 0x541c;
/// PER_LINUX, PER_LINUX32, each with UNAME26, and the query.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

macro_rules! calls {
    ($($name:ident),* $(,)?) => { [$(libc::$name),*] };
}

#[cfg(target_arch = "x86_64")]
const EPOLL: &[i64] = &calls![
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_epoll_create,
    SYS_epoll_wait,
];
#[cfg(not(target_arch = "x86_64"))]
const EPOLL: &[i64] = &calls![SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2];

/// What sessions may do beyond their level.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Grants {
    /// Reach the host's network, also where they have none of their own.
    pub(super) network: bool,
    /// Use what the host counts per user: each is another one.
    pub(super) own_users: bool,
}

/// Builds the programs of a level for this machine's architecture; `none` has none.
pub(super) fn build(level: IsolationLevel, grants: Grants) -> Result<Filters, BackendError> {
    if level == IsolationLevel::None {
        return Ok(Filters::default());
    }
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> =
        allow_list().into_iter().map(|call| (call, Vec::new())).collect();
    allowed.insert(libc::SYS_setns, Vec::new());
    allowed.insert(SYS_FCHMODAT2, Vec::new());
    allowed.extend(by_argument()?);
    if grants.own_users {
        allowed.extend(denied(EPOLL));
    }
    // libc falls back from calls that it takes for newer than the kernel
    let newer: Vec<i64> = NEWER_CALLS.filter(|call| !allowed.contains_key(call)).collect();
    let allow = SeccompFilter::new(allowed, errno(libc::EPERM), SeccompAction::Allow, arch)?;
    // Of equal actions the program installed last decides the errno: libc falls back on ENOSYS.
    let mut unknown = denied(&calls![
        SYS_clone3,
        SYS_io_uring_setup,
        SYS_io_uring_enter,
        SYS_io_uring_register,
        SYS_userfaultfd,
        // memory that no limit of a process counts
        SYS_memfd_create,
        SYS_shmget,
        SYS_shmat,
        SYS_msgget,
        SYS_semget,
        // counted per user of the host, which the service may be too
        SYS_inotify_init1
    ]);
    unknown.extend(denied(&newer));
    #[cfg(target_arch = "x86_64")]
    unknown.extend(denied(&calls![SYS_inotify_init]));
    if !grants.own_users {
        unknown.extend(denied(EPOLL)); // so is this; poll does as well
    }
    let unknown = SeccompFilter::new(unknown, SeccompAction::Allow, errno(libc::ENOSYS), arch)?;
    let mut leave = last_denied()?;
    let mut session = Vec::new();
    if level == IsolationLevel::Restricted {
        for (call, rules) in denied_among_others()? {
            if grants.network && [libc::SYS_socket, libc::SYS_connect].contains(&call) {
                continue;
            }
            // a rule without conditions must not be weakened by one that has some
            match leave.get_mut(&call) {
                Some(other) if !other.is_empty() && !rules.is_empty() => other.extend(rules),
                _ => drop(leave.insert(call, rules)),
            }
        }
        let pretended = SeccompFilter::new(pretended(), SeccompAction::Allow, errno(0), arch)?;
        session.push(bytes(pretended)?);
    }
    let leave = SeccompFilter::new(leave, SeccompAction::Allow, errno(libc::EPERM), arch)?;
    session.push(bytes(leave)?);
    Ok(Filters { zygote: vec![bytes(allow)?, bytes(unknown)?], session })
}

/// What does nothing and says that it did, to a session whose files are on the host: Landlock does not
/// rule over owners, modes, times and attributes, and others' files are of the same user.
fn pretended() -> BTreeMap<i64, Vec<SeccompRule>> {
    let mut calls = denied(&calls![
        SYS_fchmod,
        SYS_fchmodat,
        SYS_fchown,
        SYS_fchownat,
        SYS_utimensat,
        SYS_setxattr,
        SYS_lsetxattr,
        SYS_fsetxattr,
        SYS_removexattr,
        SYS_lremovexattr,
        SYS_fremovexattr
    ]);
    calls.insert(SYS_FCHMODAT2, Vec::new());
    #[cfg(target_arch = "x86_64")]
    calls.extend(denied(&calls![
        SYS_chmod,
        SYS_chown,
        SYS_lchown,
        SYS_utime,
        SYS_utimes,
        SYS_futimesat
    ]));
    calls
}

/// What the zygote and its forks need until they are in their room: other namespaces, filters (whose
/// programs the host's kernel has limited room for), and what reaches the room's init, which is the
/// same user.
fn last_denied() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, Ne};
    let is = |argument, value: u64| SeccompCondition::new(argument, Dword, Eq, value);
    let mut rules = denied(&calls![SYS_setns, SYS_seccomp]);
    let filter = SeccompRule::new(vec![is(0, libc::PR_SET_SECCOMP as u64)?])?;
    rules.insert(libc::SYS_prctl, vec![filter]);
    for call in calls![SYS_prlimit64, SYS_sched_setaffinity] {
        rules.insert(call, vec![SeccompRule::new(vec![is(0, 1)?])?]);
    }
    // at its value there are no cores; at 0 there would be, for a program of the host
    let core = u64::from(libc::RLIMIT_CORE);
    let set = SeccompCondition::new(2, Qword, Ne, 0)?;
    let set_core = SeccompRule::new(vec![is(1, core)?, set])?;
    rules.entry(libc::SYS_prlimit64).or_default().push(set_core);
    rules.insert(libc::SYS_setrlimit, vec![SeccompRule::new(vec![is(0, core)?])?]);
    let init = SeccompRule::new(vec![is(0, u64::from(libc::PRIO_PROCESS))?, is(1, 1)?])?;
    let all = SeccompRule::new(vec![is(0, u64::from(libc::PRIO_USER))?])?;
    rules.insert(libc::SYS_setpriority, vec![init, all]);
    Ok(rules)
}

/// What must be refused besides to a session that shares the host's namespaces with the service:
/// leaving its process group, every way to a socket, and what reaches other processes of its user.
fn denied_among_others() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    use SeccompCmpArgLen::Dword;
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let condition = SeccompCondition::new;
    let one = |c: SeccompCondition| SeccompRule::new(vec![c]);
    let mut rules = denied(&calls![
        SYS_setsid,
        SYS_setpgid,
        SYS_setuid,
        SYS_setgid,
        SYS_setreuid,
        SYS_setregid,
        SYS_setresuid,
        SYS_setresgid,
        SYS_setgroups,
        SYS_setfsuid,
        SYS_setfsgid,
        SYS_socket,
        SYS_connect,
        SYS_bind,
        SYS_listen,
        SYS_accept,
        SYS_accept4,
    ]);
    // limits, priorities and processors of others; 0 is the caller
    let others = |argument| Ok::<_, BackendError>(vec![one(condition(argument, Dword, Ne, 0)?)?]);
    rules.insert(libc::SYS_prlimit64, others(0)?);
    rules.insert(libc::SYS_sched_setaffinity, others(0)?);
    let class = one(condition(0, Dword, Ne, 0)?)?;
    rules.insert(libc::SYS_setpriority, vec![class, one(condition(1, Dword, Ne, 0)?)?]);
    // a datagram can be sent to any address without connect()
    let kind = |kind: i32| one(condition(1, Dword, MaskedEq(0xf), kind as u64)?);
    rules.insert(libc::SYS_socketpair, vec![kind(libc::SOCK_DGRAM)?, kind(libc::SOCK_RAW)?]);
    // a file that runs as the service's user, on the host's disk
    let by_mode = |argument| {
        let bit = |bit: u64| one(condition(argument, Dword, MaskedEq(bit), bit)?);
        Ok::<_, BackendError>(vec![bit(0o4000)?, bit(0o2000)?])
    };
    rules.insert(libc::SYS_openat, by_mode(3)?);
    rules.insert(libc::SYS_mknodat, by_mode(2)?);
    rules.insert(libc::SYS_mkdirat, by_mode(2)?);
    #[cfg(target_arch = "x86_64")]
    for (call, argument) in
        [(libc::SYS_open, 2), (libc::SYS_creat, 1), (libc::SYS_mknod, 1), (libc::SYS_mkdir, 1)]
    {
        rules.insert(call, by_mode(argument)?);
    }
    rules.insert(libc::SYS_openat2, Vec::new()); // its mode is where no filter can look
    let other_than_open = |value: u64| {
        let dumpable = condition(0, Dword, Eq, libc::PR_SET_DUMPABLE as u64)?;
        SeccompRule::new(vec![dumpable, condition(1, Dword, Ne, value)?])
    };
    // the service sees what open files without a name take
    rules.insert(libc::SYS_prctl, vec![other_than_open(1)?]);
    Ok(rules)
}

fn errno(number: i32) -> SeccompAction {
    SeccompAction::Errno(number as u32)
}

fn denied(calls: &[i64]) -> BTreeMap<i64, Vec<SeccompRule>> {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}

fn bytes(filter: SeccompFilter) -> Result<Vec<u8>, BackendError> {
    let program: BpfProgram = filter.try_into()?;
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for instruction in &program {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    Ok(bytes)
}

/// Calls that are allowed for some arguments only.
fn by_argument() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let condition = SeccompCondition::new;
    let one = |c: SeccompCondition| SeccompRule::new(vec![c]);
    let family = |family: i32| one(condition(0, Dword, Eq, family as u64)?);
    let not_ioctl = |request: u64| condition(1, Dword, Ne, request);
    let no_typing = SeccompRule::new(vec![
        not_ioctl(libc::TIOCSTI)?,
        not_ioctl(TIOCLINUX)?,
        not_ioctl(libc::TIOCSETD)?,
    ])?;
    let personalities = PERSONALITIES
        .iter()
        .map(|value| one(condition(0, Dword, Eq, *value)?))
        .collect::<Result<_, _>>()?;
    // other protocols may load modules of the host's kernel
    let mut sockets = vec![family(libc::AF_UNIX)?];
    for internet in [libc::AF_INET, libc::AF_INET6] {
        for protocol in [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
            let family = condition(0, Dword, Eq, internet as u64)?;
            sockets
                .push(SeccompRule::new(vec![family, condition(2, Dword, Eq, protocol as u64)?])?);
        }
    }
    let other_level = |argument| condition(argument, Dword, Ne, libc::SOL_SOCKET as u64);
    let not_option = |option: i32| condition(2, Dword, Ne, option as u64);
    let no_programs = SeccompRule::new(vec![
        not_option(libc::SO_ATTACH_FILTER)?,
        not_option(libc::SO_ATTACH_BPF)?,
        not_option(libc::SO_ATTACH_REUSEPORT_CBPF)?,
        not_option(libc::SO_ATTACH_REUSEPORT_EBPF)?,
    ])?;
    // urgent data of Unix sockets has been a way into the kernel
    let not_urgent = |argument| one(condition(argument, Dword, MaskedEq(libc::MSG_OOB as u64), 0)?);
    let no_watch = SeccompRule::new(vec![
        condition(1, Dword, Ne, libc::F_NOTIFY as u64)?,
        condition(1, Dword, Ne, libc::F_SETLEASE as u64)?,
    ])?;
    Ok(BTreeMap::from([
        (libc::SYS_clone, vec![one(condition(0, Qword, MaskedEq(CLONE_REFUSED), 0)?)?]),
        (libc::SYS_socket, sockets),
        (libc::SYS_socketpair, vec![family(libc::AF_UNIX)?]),
        (libc::SYS_ioctl, vec![no_typing]),
        (libc::SYS_setsockopt, vec![one(other_level(1)?)?, no_programs]),
        (libc::SYS_getsockopt, vec![one(other_level(1)?)?, one(not_option(SO_PEERPIDFD)?)?]),
        (libc::SYS_sendto, vec![not_urgent(3)?]),
        (libc::SYS_sendmsg, vec![not_urgent(2)?]),
        (libc::SYS_sendmmsg, vec![not_urgent(3)?]),
        (libc::SYS_recvfrom, vec![not_urgent(3)?]),
        (libc::SYS_recvmsg, vec![not_urgent(2)?]),
        (libc::SYS_recvmmsg, vec![not_urgent(3)?]),
        (libc::SYS_fcntl, vec![no_watch]),
        (libc::SYS_personality, personalities),
    ]))
}

#[rustfmt::skip]
fn allow_list() -> Vec<i64> {
    let mut list = Vec::new();
    // reading and writing; no splice, tee or vmsplice: page-cache bugs have lived there and nothing needs them
    list.extend(calls![
        SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_preadv2,
        SYS_pwritev2, SYS_close, SYS_close_range, SYS_lseek, SYS_dup, SYS_dup3, SYS_flock, SYS_fsync,
        SYS_fdatasync, SYS_sync_file_range, SYS_ftruncate, SYS_truncate, SYS_fallocate, SYS_fadvise64, SYS_readahead,
        SYS_copy_file_range, SYS_sendfile, SYS_pipe2, SYS_eventfd2, SYS_ppoll, SYS_pselect6, SYS_signalfd4, SYS_timerfd_create, SYS_timerfd_settime,
        SYS_timerfd_gettime, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch,
    ]);
    // files
    list.extend(calls![
        SYS_openat, SYS_openat2, SYS_newfstatat, SYS_fstat, SYS_statx, SYS_statfs, SYS_fstatfs, SYS_getdents64,
        SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_mkdirat, SYS_unlinkat, SYS_renameat, SYS_renameat2, SYS_linkat,
        SYS_symlinkat, SYS_readlinkat, SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_faccessat,
        SYS_faccessat2, SYS_utimensat, SYS_umask, SYS_mknodat, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr,
        SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_removexattr,
        SYS_lremovexattr, SYS_fremovexattr,
    ]);
    // memory
    list.extend(calls![
        SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_brk, SYS_msync, SYS_mincore, SYS_membarrier,
        SYS_mlock, SYS_munlock, SYS_mlock2, SYS_get_mempolicy, SYS_mbind, SYS_set_mempolicy, SYS_pkey_alloc,
        SYS_pkey_free, SYS_pkey_mprotect,
    ]);
    // processes and signals
    list.extend(calls![
        SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_execve, SYS_execveat, SYS_kill, SYS_tkill, SYS_tgkill,
        SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigtimedwait,
        SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_rt_sigsuspend, SYS_sigaltstack, SYS_restart_syscall,
        SYS_getpid, SYS_getppid, SYS_gettid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid,
        SYS_getresgid, SYS_getgroups, SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid,
        SYS_setresgid, SYS_setgroups, SYS_setfsuid, SYS_setfsgid, SYS_getpgid, SYS_setpgid, SYS_getsid, SYS_setsid,
        SYS_set_tid_address, SYS_set_robust_list, SYS_get_robust_list, SYS_rseq, SYS_futex, SYS_prctl, SYS_getrlimit,
        SYS_setrlimit, SYS_prlimit64, SYS_getrusage, SYS_times, SYS_sysinfo, SYS_uname, SYS_getcpu, SYS_capget,
        SYS_capset, SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_getparam,
        SYS_sched_getscheduler, SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval,
        SYS_getpriority, SYS_setpriority, SYS_ioprio_get, SYS_pidfd_open, SYS_pidfd_send_signal,
    ]);
    // time
    list.extend(calls![
        SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_getitimer,
        SYS_setitimer, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,
    ]);
    // sockets, in a namespace of the room's own
    list.extend(calls![
        SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect, SYS_getsockname, SYS_getpeername, SYS_shutdown,
        SYS_getrandom,
    ]);
    // a program may restrict itself further; kernels need seccomp until they have their last filter
    list.extend(calls![
        SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self, SYS_seccomp,
    ]);
    #[cfg(target_arch = "x86_64")]
    list.extend(calls![
        SYS_open, SYS_creat, SYS_stat, SYS_lstat, SYS_poll, SYS_select, SYS_access, SYS_pipe, SYS_dup2, SYS_rename,
        SYS_mkdir, SYS_rmdir, SYS_link, SYS_unlink, SYS_symlink, SYS_readlink, SYS_chmod, SYS_chown, SYS_lchown,
        SYS_getpgrp, SYS_inotify_init, SYS_eventfd, SYS_signalfd, SYS_futimesat,
        SYS_utime, SYS_utimes, SYS_alarm, SYS_pause, SYS_time, SYS_getdents, SYS_vfork, SYS_fork, SYS_arch_prctl,
        SYS_mknod,
    ]);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_fit_the_kernels_limit_of_4096_instructions() {
        let filters = build(IsolationLevel::Restricted, Grants::default())
            .expect("filters for this architecture");
        let lengths: Vec<usize> = filters
            .zygote
            .iter()
            .chain(&filters.session)
            .map(|program| program.len() / 8)
            .collect();
        assert_eq!(lengths.len(), 4);
        assert!(lengths.iter().all(|length| (1..4096).contains(length)), "{lengths:?}");
    }

    #[test]
    fn calls_that_change_namespaces_or_the_kernel_are_on_no_list() {
        let list = allow_list();
        for call in calls![
            SYS_unshare,
            SYS_mount,
            SYS_umount2,
            SYS_pivot_root,
            SYS_ptrace,
            SYS_bpf,
            SYS_keyctl,
            SYS_kexec_load,
            SYS_init_module,
            SYS_reboot,
            SYS_process_vm_readv,
            SYS_perf_event_open,
            SYS_splice,
            SYS_setns
        ] {
            assert!(!list.contains(&call), "{call}");
        }
    }
}
