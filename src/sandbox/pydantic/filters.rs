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
    SYS_kill,
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
    SYS_shmat,
    SYS_msgget,
    SYS_semget,
];
#[cfg(target_arch = "x86_64")]
/// The same by their older names.
const REFUSED_OLD: &[i64] =
    &calls![SYS_fork, SYS_vfork, SYS_symlink, SYS_link, SYS_mknod, SYS_kexec_file_load,];
/// libc falls back from these to what is filtered.
const UNKNOWN: &[i64] =
    &calls![SYS_clone3, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,];
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
/// The same number everywhere, as all newer ones.
const SYS_FCHMODAT2: i64 = 452;

/// The programs, in the order in which they are set. What is not named is allowed: Landlock holds
/// what a path names.
pub(super) fn all() -> Result<[BpfProgram; 3], BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let mut pretended = named(PRETENDED);
    pretended.insert(SYS_FCHMODAT2, Vec::new());
    #[cfg(target_arch = "x86_64")]
    pretended.extend(named(PRETENDED_OLD));
    let program = |calls, number: i32| {
        let told = SeccompAction::Errno(number as u32);
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
    use SeccompCmpOp::{MaskedEq, Ne};
    let when = |argument, length, is, value| {
        let condition = SeccompCondition::new(argument, length, is, value)?;
        Ok::<_, BackendError>(vec![SeccompRule::new(vec![condition])?])
    };
    let mut refused = named(REFUSED);
    #[cfg(target_arch = "x86_64")]
    refused.extend(named(REFUSED_OLD));
    let own = u64::from(std::process::id());
    refused.insert(libc::SYS_tgkill, when(0, Dword, Ne, own)?);
    refused.insert(libc::SYS_prlimit64, when(0, Dword, Ne, 0)?);
    // threads, and no processes
    let threads = libc::CLONE_THREAD as u64;
    refused.insert(libc::SYS_clone, when(0, Qword, MaskedEq(threads), 0)?);
    Ok(refused)
}

fn named(calls: &[i64]) -> BTreeMap<i64, Vec<SeccompRule>> {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}
