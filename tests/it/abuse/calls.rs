//! Hostile code asks the kernel of the host for what only an administrator may have.

use super::Expected::{Dies, Shows, Skip};

cell!(
    mounts_cannot_be_made_changed_or_taken_away,
    r#"
REMOUNT, BIND, DETACH = 32, 4096, 2
{call("mount", b"none", b"/usr", 0, REMOUNT | BIND, 0),
 call("mount", b"t", b"/files", b"tmpfs", 0, 0),
 call("mount", b"/usr", b"/files", 0, BIND, 0),
 call("umount2", b"/proc", DETACH),
 call("pivot_root", b".", b"."),
 call("chroot", b"/files")}
"#,
    Shows("{'EPERM'}")
);

cell!(
    the_newer_calls_for_mounts_are_refused_too,
    r#"
HERE, CLONE, STATMOUNT, LISTMOUNT, OPEN_TREE_ATTR = -100, 1, 457, 458, 467
{call("open_tree", HERE, b"/", CLONE),
 call("fsopen", b"tmpfs", 0),
 call("fspick", HERE, b"/", 0),
 call("fsmount", 0, 0, 0),
 call("fsconfig", 0, 6, 0, 0, 0),
 call("move_mount", HERE, b"/usr", HERE, b"/files", 0),
 call("mount_setattr", HERE, b"/usr", 0, bytes(32), 32),
 call(STATMOUNT, 0, 0, 0, 0),
 call(LISTMOUNT, 0, 0, 0, 0),
 call(OPEN_TREE_ATTR, HERE, b"/", CLONE, 0, 0)}
"#,
    Shows("{'ENOSYS', 'EPERM'}")
);

cell!(
    it_moves_into_no_new_namespace,
    r#"
USER, PID, NET, MOUNT, TIME = 0x10000000, 0x20000000, 0x40000000, 0x20000, 0x80
UTS, IPC, CGROUP = 0x4000000, 0x8000000, 0x2000000
kinds = (USER, PID, NET, MOUNT, TIME, UTS, IPC, CGROUP)
tool = subprocess.run(["unshare", "-Ur", "id"], stderr=subprocess.DEVNULL)
{call("unshare", kind) for kind in kinds}, tool.returncode
"#,
    Shows("({'EPERM'}, 1)")
);

cell!(
    no_child_is_born_into_a_new_namespace,
    r#"
USER, PID, NET, MOUNT, TIME = 0x10000000, 0x20000000, 0x40000000, 0x20000, 0x80
UTS, IPC, CGROUP = 0x4000000, 0x8000000, 0x2000000
kinds = (USER, PID, NET, MOUNT, TIME, UTS, IPC, CGROUP)
flags = [kind | signal.SIGCHLD for kind in kinds]
{call("clone", one, 0, 0, 0, 0) for one in flags}, call("clone3", bytes(88), 88)
"#,
    Shows("({'EPERM'}, 'ENOSYS')")
);

cell!(
    no_namespace_is_entered,
    r#"
MOUNT = 0x20000
names = "net mnt pid user ipc uts cgroup"
own = [os.open(f"/proc/self/ns/{name}", 0) for name in names.split()]
{call("setns", one, 0) for one in own}, {call("setns", os.pidfd_open(pid), MOUNT) for pid in (1, 2)}
"#,
    Shows("({'EPERM'}, {'EPERM'})")
);

cell!(
    no_descriptor_leads_to_the_namespace_of_another,
    r#"
PIDFD, GET_OWNER, GET_PARENT = 0xff00, 0xb701, 0xb702
first = os.pidfd_open(1)
net, user = (os.open(f"/proc/self/ns/{name}", 0) for name in ("net", "user"))
seen = {attempt(fcntl.ioctl, first, PIDFD + number, 0) for number in range(1, 11)}
(seen <= {"EACCES", "EPERM", "ENOTTY", "EINVAL"}, attempt(fcntl.ioctl, net, GET_OWNER),
 attempt(fcntl.ioctl, user, GET_PARENT), attempt(os.open, "/proc/1/ns/net", 0))
"#,
    Shows("(True, 'EPERM', 'EPERM', 'EACCES')"),
    restricted: Skip("its namespaces are the host's there")
);

cell!(
    no_process_is_looked_into_or_written_to,
    r#"
ATTACH, SEIZE, TRACE_ME = 16, 0x4206, 0
own = os.pidfd_open(os.getpid())
{call("ptrace", ATTACH, 1, 0, 0),
 call("ptrace", SEIZE, 1, 0, 0),
 call("ptrace", TRACE_ME, 0, 0, 0),
 call("process_vm_readv", 1, 0, 0, 0, 0, 0),
 call("process_vm_writev", 2, 0, 0, 0, 0, 0),
 call("process_madvise", own, 0, 0, 0, 0),
 call("process_mrelease", own, 0),
 call("pidfd_getfd", own, 950, 0),
 call("kcmp", 1, 2, 0, 0, 0)}
"#,
    Shows("{'EPERM'}")
);

cell!(
    the_keyring_is_closed,
    r#"
SESSION = -3
{call("keyctl", 0, SESSION, 1),
 call("add_key", b"user", b"a", b"b", 1, SESSION),
 call("request_key", b"user", b"a", 0, SESSION)}
"#,
    Shows("{'EPERM'}")
);

cell!(
    rings_of_requests_are_not_there,
    r#"
{call("io_uring_setup", 8, bytes(120)),
 call("io_uring_enter", 0, 0, 0, 0, 0, 0),
 call("io_uring_register", 0, 0, 0, 0)}
"#,
    Shows("{'ENOSYS'}")
);
cell!(page_faults_are_not_handled_by_it, r#"call("userfaultfd", 0)"#, Shows("'ENOSYS'"));
cell!(no_program_is_loaded_into_the_kernel, r#"call("bpf", 0, bytes(128), 128)"#, Shows("'EPERM'"));
cell!(
    nothing_is_counted_by_the_processor_for_it,
    r#"call("perf_event_open", bytes(128), 0, -1, -1, 0)"#,
    Shows("'EPERM'")
);

cell!(
    memory_in_files_without_a_name_is_not_there,
    r#"call("memfd_create", b"x", 0), call("memfd_secret", 0)"#,
    Shows("('ENOSYS', 'EPERM')")
);
cell!(
    shared_memory_queues_and_semaphores_of_system_v_are_not_there,
    r#"
{call("shmget", 0, 1 << 33, 0o1600),
 call("shmat", 0, 0, 0),
 call("msgget", 0, 0o1600),
 call("semget", 0, 1, 0o1600)}, call("shmctl", 0, 0, 0), call("mq_open", b"x", 0o102, 0o600, 0)
"#,
    Shows("({'ENOSYS'}, 'EPERM', 'EPERM')")
);
cell!(
    watches_that_are_counted_per_user_of_the_host_are_not_there,
    r#"call("inotify_init1", 0), call("fanotify_init", 0, 0)"#,
    Shows("('ENOSYS', 'EPERM')")
);

cell!(
    the_machine_is_not_the_sessions_to_run,
    r#"
{call("reboot", 0xfee1dead, 672274793, 0, 0),
 call("swapon", b"/files/x", 0), call("swapoff", b"/files/x"),
 call("init_module", 0, 0, 0), call("finit_module", 0, 0, 0), call("delete_module", b"ext4", 0),
 call("kexec_load", 0, 0, 0, 0), call("kexec_file_load", 0, 0, 0, 0, 0),
 call("acct", b"/files/x"), call("syslog", 3, 0, 0), call("vhangup"),
 call("quotactl", 0, 0, 0, 0), call("quotactl_fd", 0, 0, 0, 0)}
"#,
    Shows("{'EPERM'}")
);

cell!(
    the_clock_and_the_names_of_the_host_stay,
    r#"
{call("settimeofday", 0, bytes(16)), call("clock_settime", 0, bytes(16)),
 call("adjtimex", bytes(208)), call("clock_adjtime", 0, bytes(208)),
 call("sethostname", b"x", 1), call("setdomainname", b"x", 1)}
"#,
    Shows("{'EPERM'}")
);

cell!(
    files_are_not_opened_by_their_number,
    r#"
handle = struct.pack("Ii", 128, 0) + bytes(128)
{call("name_to_handle_at", -100, b"/files", handle, bytes(8), 0),
 call("open_by_handle_at", -100, handle, 0)}
"#,
    Shows("{'EPERM'}")
);

cell!(
    every_other_call_that_few_programs_need_is_refused,
    r#"
calls = """fanotify_mark lookup_dcookie migrate_pages move_pages splice tee vmsplice io_setup
io_submit io_destroy io_getevents mq_unlink remap_file_pages set_mempolicy_home_node nfsservctl
sched_setscheduler sched_setattr sched_setparam ioprio_set futex_waitv"""
CACHESTAT, MAP_SHADOW_STACK, LATER = 451, 453, range(457, 480)
numbers = [*calls.split(), CACHESTAT, MAP_SHADOW_STACK, *LATER]
{number for number in numbers if call(number, 0, 0, 0, 0, 0, 0) not in ("EPERM", "ENOSYS")}
"#,
    Shows("set()")
);

#[cfg(target_arch = "x86_64")]
cell!(
    the_oldest_calls_of_this_processor_are_refused,
    r#"
calls = """ioperm iopl modify_ldt uselib ustat sysfs _sysctl get_thread_area set_thread_area
afs_syscall tuxcall security vserver getpmsg"""
{name for name in calls.split() if call(name, 0, 0, 0, 0, 0, 0) != "EPERM"}
"#,
    Shows("set()")
);

cell!(
    numbers_that_no_call_has_are_refused,
    "{call(number) for number in (500, 1000, 4096, 65535, 0x3fffffff, 0x7fffffff, -2)}",
    Shows("{'ENOSYS', 'EPERM'}")
);

cell!(
    the_upper_half_of_a_number_hides_nothing,
    r#"
HIGH, NETLINK, NEW_USER = 1 << 32, 16, 0x10000000
{call(HIGH | CALLS["mount"], b"t", b"/files", b"tmpfs", 0, 0),
 call("socket", HIGH | NETLINK, 3, 0),
 call("clone", HIGH | NEW_USER | signal.SIGCHLD, 0, 0, 0, 0)}
"#,
    Shows("{'EPERM'}")
);

#[cfg(target_arch = "x86_64")]
cell!(
    the_numbers_of_the_other_x86_interface_are_no_way_round,
    r#"
X32, GETPID, MOUNT, EXECVE = 0x40000000, 39, 165, 520
[call(X32 + GETPID), call(X32 + MOUNT, b"t", b"/files", b"tmpfs", 0, 0), call(X32 + EXECVE)]
"#,
    Shows("['EPERM', 'EPERM', 'EPERM']")
);

#[cfg(target_arch = "x86_64")]
cell!(
    a_call_through_the_32_bit_entry_ends_the_interpreter,
    r#"
code = mmap.mmap(-1, 4096, prot=7)
code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, getpid; int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"#,
    Dies { exit_code: 159 }
);

cell!(
    typing_into_a_terminal_is_refused_however_the_number_is_written,
    r#"
TIOCSTI, TIOCLINUX, TIOCSETD, HIGH = 0x5412, 0x541c, 0x5423, 1 << 32
requests = [request | high for request in (TIOCSTI, TIOCLINUX, TIOCSETD) for high in (0, HIGH)]
{call("ioctl", 0, request, b"x") for request in requests}
"#,
    Shows("{'EPERM'}")
);

cell!(
    there_is_no_terminal_to_be_had,
    r#"
import pty
TIOCSCTTY = 0x540e
(attempt(pty.openpty), attempt(open, "/dev/ptmx"), attempt(open, "/dev/tty"), os.isatty(0),
 attempt(fcntl.ioctl, 1, TIOCSCTTY, 0))
"#,
    Shows("('OSError', 'ENOENT', 'ENXIO', False, 'ENOTTY')"),
    restricted: Shows("('OSError', 'EACCES', 'ENXIO', False, 'ENOTTY')")
);

cell!(
    the_personality_cannot_be_one_without_random_addresses,
    r#"
NO_RANDOM_ADDRESSES, READ_MEANS_EXECUTE, ASK = 0x40000, 0x400000, 0xffffffff
[call("personality", value) for value in (NO_RANDOM_ADDRESSES, READ_MEANS_EXECUTE, ASK)]
"#,
    Shows("['EPERM', 'EPERM', 0]")
);

cell!(
    what_prctl_may_lower_is_lowered_and_nothing_raised,
    r#"
PDEATHSIG, DUMPABLE, MCE_KILL = 1, 4, 33
lowered = [call("prctl", PDEATHSIG, 0, 0, 0, 0), call("prctl", DUMPABLE, 1, 0, 0, 0),
           call("prctl", MCE_KILL, 0, 0, 0, 0)]
KEEPCAPS, BOUNDING, SECUREBITS, SET_MM, NO_NEW_PRIVS = 8, 24, 28, 35, 38
AMBIENT, IO_FLUSHER, RAISE, SYS_ADMIN = 47, 57, 2, 21
lowered, {call("prctl", KEEPCAPS, 1, 0, 0, 0), call("prctl", BOUNDING, SYS_ADMIN, 0, 0, 0),
 call("prctl", SECUREBITS, 0, 0, 0, 0), call("prctl", SET_MM, 1, 0, 0, 0),
 call("prctl", AMBIENT, RAISE, SYS_ADMIN, 0, 0), call("prctl", IO_FLUSHER, 1, 0, 0, 0)
}, {call("prctl", NO_NEW_PRIVS, 0, 0, 0, 0), call("prctl", DUMPABLE, 2, 0, 0, 0)}
"#,
    Shows("([0, 0, 0], {'EPERM'}, {'EINVAL'})"),
    restricted: Shows("([0, 0, 0], {0, 'EPERM'}, {'EINVAL', 'EPERM'})")
);

cell!(
    a_program_may_lock_itself_further_in_and_run_on,
    r#"
WRITE_FILE = 1 << 1
ruleset = call("landlock_create_ruleset", struct.pack("Q", WRITE_FILE), 8, 0)
pid = os.fork()
if not pid:
    call("landlock_restrict_self", ruleset, 0)
    os._exit(10 * (attempt(open, "x", "w") == "EACCES") + subprocess.call(["true"]))
os.close(ruleset)
os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"#,
    Shows("10")
);

cell!(
    locks_cannot_be_put_on_locks_without_end,
    r#"
WRITE_FILE = 1 << 1
ruleset = call("landlock_create_ruleset", struct.pack("Q", WRITE_FILE), 8, 0)
pid = os.fork()
if not pid:
    seen = [call("landlock_restrict_self", ruleset, 0) for _ in range(40)]
    os._exit(seen.count("E2BIG") > 20)
os.close(ruleset)
os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"#,
    Shows("1")
);

cell!(
    no_filter_of_its_own_can_be_installed,
    r#"
FILTER, NEW_LISTENER, ALLOW, PR_SET_SECCOMP = 1, 8, 0x7fff0000, 22
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, ALLOW))
program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(code))
{call("seccomp", FILTER, flags, program) for flags in (0, NEW_LISTENER)} | {
    call("prctl", PR_SET_SECCOMP, 2, program, 0, 0)}
"#,
    Shows("{'EPERM'}")
);
