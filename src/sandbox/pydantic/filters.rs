//! The system calls that Deno may not make, as data.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

macro_rules! calls {
    ($($name:ident),* $(,)?) => { [$(libc::$name),*] };
}

/// Sockets, other processes, other programs' files, and what rules over the host.
const REFUSED: &[i64] = &calls![
    SYS_socket,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_setpgid,
    SYS_setsid,
    SYS_inotify_init1,
    SYS_fanotify_init,
    SYS_memfd_create,
    SYS_kill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_sched_setaffinity,
    SYS_sched_setscheduler,
    SYS_sched_setparam,
    SYS_sched_setattr,
    SYS_tkill,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
    SYS_pidfd_send_signal,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    SYS_kcmp,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_setpriority,
    SYS_ioprio_set,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fsmount,
    SYS_fsconfig,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    SYS_quotactl,
    SYS_acct,
    SYS_syslog,
    SYS_symlinkat,
    SYS_linkat,
    SYS_mknodat,
    SYS_shmget,
    SYS_shmctl,
    SYS_msgctl,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_semctl,
    SYS_semop,
    SYS_semtimedop,
    SYS_mq_open,
    SYS_mq_unlink,
    SYS_truncate,
    SYS_kexec_file_load,
    SYS_shmat,
    SYS_msgget,
    SYS_semget,
];
#[cfg(target_arch = "x86_64")]
/// The same by their older names.
const REFUSED_OLD: &[i64] =
    &calls![SYS_fork, SYS_vfork, SYS_inotify_init, SYS_symlink, SYS_link, SYS_mknod];
/// libc falls back from these to what is filtered.
const UNKNOWN: &[i64] = &calls![
    SYS_openat2,
    SYS_clone3,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
];
/// They say that they did it: files of other sandboxes have the same owner, and Landlock does not rule
/// over these.
const PRETENDED: &[i64] = &calls![
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
    SYS_fremovexattr,
];
#[cfg(target_arch = "x86_64")]
/// The same by their older names.
const PRETENDED_OLD: &[i64] =
    &calls![SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat,];
/// Calls with a file's mode, and which argument it is.
#[cfg(target_arch = "x86_64")]
const WITH_MODE: &[(i64, u8)] = &[
    (libc::SYS_openat, 3),
    (libc::SYS_open, 2),
    (libc::SYS_creat, 1),
    (libc::SYS_mkdirat, 2),
    (libc::SYS_mkdir, 1),
];
#[cfg(not(target_arch = "x86_64"))]
const WITH_MODE: &[(i64, u8)] = &[(libc::SYS_openat, 3), (libc::SYS_mkdirat, 2)];
const F_SETOWN_EX: i32 = 15;
const F_SETSIG: i32 = 10;
const FS_IOC_SETFLAGS: u64 = 0x4008_6602;
const RENAME_WHITEOUT: u64 = 4;
/// fchmodat2, setxattrat, removexattrat, file_setattr: numbers that are the same everywhere.
const PRETENDED_NEW: [i64; 4] = [452, 463, 466, 469];
/// The same calls by the numbers of another ABI, which the architecture does not tell from this one.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;
/// Calls that only that ABI has: its own ways to be ptraced, to start programs, to send and to queue.
#[cfg(target_arch = "x86_64")]
const X32_ONLY: std::ops::Range<i64> = 512..548;

/// The programs, in the order in which they are set. What is not named is allowed: Landlock holds
/// what a path names.
pub(super) fn all() -> Result<[BpfProgram; 3], BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let mut pretended = named(PRETENDED);
    pretended.extend(named(&PRETENDED_NEW));
    #[cfg(target_arch = "x86_64")]
    pretended.extend(named(PRETENDED_OLD));
    let program = |calls, number: i32| {
        let told = SeccompAction::Errno(number as u32);
        let calls = in_both_abis(calls);
        SeccompFilter::new(calls, SeccompAction::Allow, told, arch)?.try_into()
    };
    Ok([
        program(pretended, 0)?,
        program(named(UNKNOWN), libc::ENOSYS)?,
        program(refused()?, libc::EPERM)?,
    ])
}

fn refused() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let mut refused = named(REFUSED);
    #[cfg(target_arch = "x86_64")]
    refused.extend(named(REFUSED_OLD));
    let own = u64::from(std::process::id());
    refused.insert(libc::SYS_tgkill, when(0, Dword, Ne, own)?);
    refused.insert(libc::SYS_prlimit64, when(0, Dword, Ne, 0)?);
    // it dies with the service
    refused.insert(libc::SYS_prctl, when(0, Dword, Eq, libc::PR_SET_PDEATHSIG as u64)?);
    // a datagram needs no connect() to go to any address
    let kinds = [libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET];
    refused.insert(
        libc::SYS_socketpair,
        any(kinds.map(|kind| when(1, Dword, MaskedEq(0xf), kind as u64)))?,
    );
    // signals by way of files
    let owners = [libc::F_SETOWN, F_SETOWN_EX, F_SETSIG];
    refused.insert(libc::SYS_fcntl, any(owners.map(|what| when(1, Dword, Eq, what as u64)))?);
    refused.insert(libc::SYS_ioctl, when(1, Dword, Eq, FS_IOC_SETFLAGS)?);
    refused
        .insert(libc::SYS_renameat2, when(4, Dword, MaskedEq(RENAME_WHITEOUT), RENAME_WHITEOUT)?);
    // a file that runs as the service's user
    for (call, argument) in WITH_MODE {
        let bits = [0o4000, 0o2000];
        refused.insert(*call, any(bits.map(|bit| when(*argument, Dword, MaskedEq(bit), bit)))?);
    }
    // threads, and no processes
    let threads = libc::CLONE_THREAD as u64;
    refused.insert(libc::SYS_clone, when(0, Qword, MaskedEq(threads), 0)?);
    Ok(refused)
}

#[cfg(target_arch = "x86_64")]
fn in_both_abis(mut calls: BTreeMap<i64, Vec<SeccompRule>>) -> BTreeMap<i64, Vec<SeccompRule>> {
    let others: Vec<_> = calls.keys().map(|call| (call | X32, Vec::new())).collect();
    calls.extend(others);
    calls.extend(X32_ONLY.map(|call| (call | X32, Vec::new())));
    calls
}

#[cfg(not(target_arch = "x86_64"))]
fn in_both_abis(calls: BTreeMap<i64, Vec<SeccompRule>>) -> BTreeMap<i64, Vec<SeccompRule>> {
    calls
}

/// Refused when one argument is so.
fn when(
    argument: u8,
    length: SeccompCmpArgLen,
    is: SeccompCmpOp,
    value: u64,
) -> Result<Vec<SeccompRule>, BackendError> {
    let condition = SeccompCondition::new(argument, length, is, value)?;
    Ok(vec![SeccompRule::new(vec![condition])?])
}

/// Refused when one of several things is so.
fn any<const N: usize>(
    rules: [Result<Vec<SeccompRule>, BackendError>; N],
) -> Result<Vec<SeccompRule>, BackendError> {
    Ok(rules.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
}

fn named(calls: &[i64]) -> BTreeMap<i64, Vec<SeccompRule>> {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}
