"""Lowering this process: what is given up between the fork and the first cell, in order.

The warden has made the room (namespaces, root file system) in Rust. What is left here are the
steps that only the process itself can take. Every step either works or raises: there is no
half-lowered kernel.
"""

import ctypes
import os
import resource
import struct

libc = ctypes.CDLL(None, use_errno=True)

MACHINE = os.uname().machine
SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}[MACHINE]
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}[MACHINE]
SYS_CLOSE_RANGE = 436
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x20000, 0x2000000, 0x4000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x8000000, 0x10000000, 0x20000000, 0x40000000
ROOM_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUSER

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 4, 24, 36
PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 28, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
INSIDE_USER = 1000
# noroot, no_setuid_fixup, keep_caps off, and the locks of all three
SECUREBITS_LOCKED = 0x2F
LINUX_CAPABILITY_VERSION_3 = 0x20080522

HUGE_PAGE, MADV_COLLAPSE = 2 << 20, 25
THREAD_STACK_BYTES = 8 << 20

# what a room's own root holds; without one, the warden names the host's folders
READABLE = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt", "/proc", "/dev", "/var", "/sys"]
WRITABLE = ["/files", "/tmp", "/var/tmp", "/home/user", "/dev/shm"]
DEVICES = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"]

# Landlock access rights, https://docs.kernel.org/userspace-api/landlock.html
FS_EXECUTE, FS_WRITE_FILE, FS_READ_FILE, FS_READ_DIR = 0x1, 0x2, 0x4, 0x8
FS_TRUNCATE, FS_IOCTL_DEV = 0x4000, 0x8000
FS_ALL_BY_ABI = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
FS_FOR_A_FILE = FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV
NET_BIND_AND_CONNECT_TCP = 3
SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3


def check(result, what):
    """Raises OSError with errno when a libc call has failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number, *arguments):
    """A raw system call; Python ints become C longs."""
    return libc.syscall(
        ctypes.c_long(number),
        *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments],
    )


def use_huge_pages():
    """Puts this process's own memory on huge pages where the kernel has them: a fork has less to copy."""
    try:
        with open("/proc/self/maps", encoding="ascii") as maps:
            regions = [line.split() for line in maps]
    except OSError:
        return  # without /proc forks are a little slower
    for address, mode, _, _, _, *path in regions:
        if "w" not in mode or path not in ([], ["[heap]"]):
            continue
        first, end = (int(number, 16) for number in address.split("-"))
        first, end = -(-first // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if first < end:
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), MADV_COLLAPSE)


def join_pid_namespace(pidfd):
    """Forks from here on are born in the pid namespace of `pidfd`."""
    check(libc.setns(pidfd, CLONE_NEWPID), "setns pid")


def enter_room(pidfd, network):
    """Moves into every namespace of the room but its pid namespace, which a fork has entered.

    `network`: the room has the host's, as the zygote has.
    """
    check(libc.setns(pidfd, ROOM_NAMESPACES & ~CLONE_NEWNET if network else ROOM_NAMESPACES), "setns room")


def become_user():
    """The room's user, who may be another user of the host than the zygote is."""
    os.setresgid(INSIDE_USER, INSIDE_USER, INSIDE_USER)
    os.setresuid(INSIDE_USER, INSIDE_USER, INSIDE_USER)


def close_other_descriptors(first, last):
    """Closes every descriptor from 3 on except those from `first` to `last`."""
    check(syscall(SYS_CLOSE_RANGE, 3, first - 1, 0), "close_range")
    check(syscall(SYS_CLOSE_RANGE, last + 1, 0x7FFFFFFF, 0), "close_range")


def die_with_parent():
    """The kernel dies with the zygote. Credentials changes clear this, so it comes after them."""
    check(libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0), "pdeathsig")
    check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")


def adopt_orphans():
    """What a session without a process namespace leaves behind is this process's to reap."""
    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")


def set_limits(limits):
    """Sets soft and hard limits alike, never above what is already the hard limit.

    But for the stack: its soft limit is what each thread of a child process reserves.
    """
    for name, value in limits.items():
        which = getattr(resource, "RLIMIT_" + name.upper())
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        soft = min(value, THREAD_STACK_BYTES) if name == "stack" else value
        resource.setrlimit(which, (soft, value))


def address_space_bytes():
    """What this process has mapped now: a limit on memory is counted from here."""
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    pages = os.read(statm, 100).split()[0]
    os.close(statm)
    return int(pages) * resource.getpagesize()


def rehearse():
    """The steps of this file that change nothing."""
    address_space_bytes()
    abi = landlock_abi()
    if abi:
        os.close(make_ruleset(abi, READABLE, WRITABLE, ["/"], network=True))


def have_no_capabilities():
    """Raises when this process has any: outside of a user namespace there must be none to drop."""
    with open("/proc/self/status", encoding="ascii") as status:
        held = [line for line in status if line.startswith(("CapPrm", "CapEff", "CapInh", "CapAmb"))]
    if os.geteuid() == 0 or any(int(line.split()[1], 16) for line in held):
        raise PermissionError("a session must not start with capabilities")
    no_new_privileges()


def drop_capabilities():
    """Gives up the bounding, ambient and own capabilities and the ways to regain them."""
    capability = 0
    while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    check(libc.prctl(PR_SET_SECUREBITS, SECUREBITS_LOCKED, 0, 0, 0), "securebits")
    header = struct.pack("Ii", LINUX_CAPABILITY_VERSION_3, 0)
    check(syscall(SYS_CAPSET, ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))), "capset")
    no_new_privileges()


def no_new_privileges():
    """No exec gains rights from here on; seccomp asks for it."""
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def landlock_abi():
    """The version of Landlock that the kernel has, 0 without."""
    return max(0, syscall(SYS_LANDLOCK_CREATE, 0, 0, 1))


def restrict_paths(readable, writable, listed=(), network=True):
    """A Landlock domain over these paths where the kernel has it. Gives its ABI, 0 without."""
    abi = landlock_abi()
    if abi == 0:
        return 0
    ruleset = make_ruleset(abi, readable, writable, listed, network)
    check(syscall(SYS_LANDLOCK_RESTRICT, ruleset, 0), "landlock restrict")
    os.close(ruleset)
    return abi


def make_ruleset(abi, readable, writable, listed, network):
    """The descriptor of a ruleset; it restricts nobody yet."""
    handled = FS_ALL_BY_ABI[min(abi, 5)]
    net = 0 if network or abi < 4 else NET_BIND_AND_CONNECT_TCP
    scoped = SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if abi >= 6 else 0
    attributes = struct.pack("QQQ", handled, net, scoped)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = check(
        syscall(SYS_LANDLOCK_CREATE, ctypes.c_char_p(attributes), len(attributes), 0),
        "landlock ruleset",
    )
    device = FS_WRITE_FILE | FS_READ_FILE | (FS_IOCTL_DEV if abi >= 5 else 0)
    allowed = [(path, FS_READ_DIR) for path in listed]
    allowed += [(path, FS_EXECUTE | FS_READ_FILE | FS_READ_DIR) for path in readable]
    allowed += [(path, handled) for path in writable]
    allowed += [(path, device) for path in DEVICES]
    for path, access in allowed:
        _allow(ruleset, path, access & handled)
    return ruleset


def _allow(ruleset, path, access):
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    for rights in (access, access & FS_FOR_A_FILE):  # rights of folders are refused for a file
        rule = ctypes.c_char_p(struct.pack("=Qi", rights, fd))
        if syscall(SYS_LANDLOCK_ADD, ruleset, 1, rule, 0) == 0:
            break
    else:
        check(-1, "landlock rule " + path)
    os.close(fd)


def install_filters(programs):
    """Installs seccomp programs, first to last; of equal actions the last one's errno wins."""

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    for program in programs:
        buffer = ctypes.create_string_buffer(program, len(program))
        pointer = Program(len(program) // 8, ctypes.addressof(buffer))
        check(syscall(SYS_SECCOMP, 1, 0, ctypes.byref(pointer)), "seccomp")
