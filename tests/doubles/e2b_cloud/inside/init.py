"""Process 1 of a sandbox: builds its private file system, then starts and signals processes.

usage: init.py SOCKET ROOT MODE NETWORK [DIRECTORY...], by box.py alone.

MODE is `root` (namespaces, by root), `user` (namespaces below a user namespace of our own) or `plain` (none).
NETWORK is `shared` or `none`. The directories stay visible even where the sandbox has its own, such as /home.

On the socket: requests are a length of four bytes, which carries the file descriptors, and JSON; answers are
lines of JSON. When the socket ends, so does the sandbox.

All imports are here at the top: later this Python may be out of sight.
"""

import array  # noqa: F401 - for socket, which would look for it too late
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys

PRIVATE = ("home", "root", "tmp", "files", "proc")
TOOLS = "/.double"
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 0x1, 0x20, 0x1000, 0x4000, 0x40000, 0x200000
KEPT_FLAGS = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME  # the same bits for mount
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
TIOCSCTTY = 0x540E

libc = ctypes.CDLL(None, use_errno=True)


def main():
    descriptor, root, mode, network, *visible = sys.argv[1:]
    control = socket.socket(fileno=int(descriptor))
    os.set_inheritable(control.fileno(), False)
    try:
        if mode == "plain":
            call(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
        else:
            call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
            root = move_in(root, mode, network, visible)
        os.chdir(root)
        top = os.open(root, os.O_PATH)
    except OSError as error:
        control.sendall(json.dumps({"refused": str(error)}).encode() + b"\n")
        return
    socket.send_fds(control, [b'{"ready": true}\n'], [top])
    os.close(top)
    Init(control, root if mode == "plain" else None).serve()


def move_in(root, mode, network, visible):
    enter_namespaces(mode, network)
    build_root(root, visible)
    wait_outside()
    mount("proc", root + "/proc", "proc")
    os.chroot(root)
    return "/"


def enter_namespaces(mode, network):
    flags = CLONE_NEWNS | CLONE_NEWPID | (CLONE_NEWNET if network == "none" else 0)
    user, group = os.geteuid(), os.getegid()
    call(libc.unshare(flags | (CLONE_NEWUSER if mode == "user" else 0)))
    if mode == "user":
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"0 {user} 1")
        write("/proc/self/gid_map", f"0 {group} 1")
    if network == "none":
        loopback_up()
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def build_root(root, visible):
    """The host's directories, not to be written, except those a sandbox has for itself."""
    mount("tmpfs", root, "tmpfs", data="mode=0755")
    for entry in os.scandir("/"):
        inside = f"{root}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), inside)
        elif entry.is_dir() and entry.name not in PRIVATE:
            bind(entry.path, inside)
    for name in ("home/user", "root", "proc", "tmp"):
        os.makedirs(f"{root}/{name}")
    os.chmod(f"{root}/tmp", 0o1777)
    for directory in visible:
        if directory.split("/")[1] in PRIVATE:
            bind(directory, root + directory)
    bind(os.path.dirname(os.path.abspath(__file__)), root + TOOLS)


def bind(directory, inside):
    os.makedirs(inside, exist_ok=True)
    mount(directory, inside, None, MS_BIND | MS_REC)
    found = os.statvfs(inside).f_flag
    flags = found & KEPT_FLAGS | (MS_RELATIME if found & os.ST_RELATIME else 0)
    try:
        mount("none", inside, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)
    except OSError:
        pass  # a precaution only


def wait_outside():
    """Goes on as process 1 of the new namespace; the process that was started waits for its end."""
    pid = os.fork()
    if pid:
        os.closerange(3, 64)
        os.waitpid(pid, 0)
        os._exit(0)
    call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    os.setsid()


def mount(source, target, kind, flags=0, data=""):
    options = data.encode() or None
    call(libc.mount(source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), options), target)


def call(result, what=None):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


class Init:
    """Starts what is asked for, passes signals on, tells of each end."""

    def __init__(self, control, plain):
        self.control = control
        self.plain = plain  # without namespaces: the directory that stands for the root
        self.children = set()

    def serve(self):
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if woken in ready:
                os.read(woken, 512)
                self.reap()
            if self.control.fileno() in ready:
                self.request()

    def request(self):
        head, descriptors, _, _ = socket.recv_fds(self.control, 4, 8)
        body = b""
        if head:
            (length,) = struct.unpack(">I", head)
            while len(body) < length and (piece := self.control.recv(length - len(body))):
                body += piece
        if not body:
            self.end()
        request = json.loads(body)
        getattr(self, request.pop("do"))(descriptors=descriptors, **request)

    def spawn(self, number, argv, cwd, env, terminal, descriptors):
        failed, failing = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.become(argv, cwd, env, terminal, descriptors, failing)
        for descriptor in (failing, *descriptors):
            os.close(descriptor)
        self.children.add(pid)
        problem = os.read(failed, 4096)
        os.close(failed)
        self.answer({"spawn": number, "failed": problem.decode()} if problem else {"spawn": number, "pid": pid})

    def become(self, argv, cwd, env, terminal, descriptors, failing):
        try:
            os.setsid()
            if self.plain:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, programs expect them
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            self.place([*descriptors, failing])
            failing = len(descriptors)
            os.set_inheritable(failing, False)
            if terminal:
                fcntl.ioctl(0, TIOCSCTTY, 0)
            os.chdir(cwd)
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(failing, f"fork/exec {argv[0]}: {error.strerror.lower()}".encode())
        except BaseException as error:  # a mistake of ours: nothing may return into the loop
            os.write(failing, f"init: {error!r}".encode())
        finally:
            os._exit(127)

    def place(self, descriptors):
        """Makes the descriptors 0, 1, 2, ... in their order and closes all others."""
        away = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in descriptors]
        for number, descriptor in enumerate(away):
            os.dup2(descriptor, number)
        os.closerange(len(descriptors), 256)

    def signal(self, pid, number, group, descriptors):
        try:
            (os.killpg if group else os.kill)(pid, number)
        except OSError:
            pass  # it has ended

    def everyone(self, number, descriptors=()):
        """Signals every process of the sandbox."""
        if self.plain:
            for pid in self.children:
                self.signal(pid, number, True, ())
        else:
            try:
                os.kill(-1, number)
            except ProcessLookupError:
                pass

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.children:
                self.children.discard(pid)
                self.answer({"exit": pid, "code": os.waitstatus_to_exitcode(status)})

    def answer(self, message):
        try:
            self.control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.end()

    def end(self):
        if self.plain:
            self.clean_up()
        os._exit(0)

    def clean_up(self):
        """What a namespace would do: whoever descends from us ends, and the files go."""
        while children := children_of(os.getpid()):
            for pid in children:
                self.signal(pid, signal.SIGKILL, False, ())
            self.reap_quietly()
        shutil.rmtree(self.plain, ignore_errors=True)

    def reap_quietly(self):
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            pass


if __name__ == "__main__":
    main()
