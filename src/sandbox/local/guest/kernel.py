"""One session's kernel: it moves into its room, lowers itself, and serves cells until it ends.

The session socket carries frames both ways (channel.py):
  in : {"t":"environ","environ":{}} before the first cell
       {"t":"exec","id","code","lang":"python"|"sh","env":{},"stdin":null|str}
  out: hello{python,landlock} · display{id,data,metadata,display_id?,update?,cut?} · result{id,n,data,metadata,cut?}
       error{id,ename,evalue,traceback,line?} · clear{id,wait} · dropped{id,what,bytes} · done{id,status,n?,exit_code}
Threads of earlier cells print into a third pipe, descriptor 951, while a later cell runs.
stdout and stderr are never frames: they are the pipes at descriptors 1 and 2, flushed before
every frame, so a service that drains both pipes when a frame arrives keeps the order.

An interrupt is SIGINT to process group 2, sent by the room's init. One that arrives before the
cell has begun is dropped: the service repeats it until "done" or the end of its grace.
Nothing in this process is trusted after its first cell.
"""

import bdb
import builtins
import io
import os
import signal
import site
import socket
import sys
import threading
import traceback
import weakref

from interpreterd_guest import jail, terminal
from interpreterd_guest.channel import Channel
from interpreterd_guest.command import run_shell
from interpreterd_guest.shell import Current, flush, forget, send_error

CONTROL_FD, LATE_FD = 950, 951  # out of the way of the low descriptors that programs expect
NICENESS = 5  # the service goes first
EXIT_BROKEN = 97
REHEARSALS = 64
NULL_DEVICE = os.makedev(1, 3)
WARMING = "print(end='')\n1 + 1"
SHADOW = os.path.join(os.path.dirname(os.path.dirname(__file__)), "shadow")

ENVIRON = {
    "USER": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": SHADOW,
    "PIP_NO_INDEX": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "MALLOC_ARENA_MAX": "2",  # an arena reserves 64 MiB, and some hosts can only limit what is reserved
}


def live(shell, request, descriptors, plan):
    """Turns a fresh fork of the zygote into the kernel of one session; returns never."""
    room, control, out, err, late = descriptors[:5]
    for cgroup in descriptors[5:]:
        os.write(cgroup, b"0")  # before anything else: what is taken from here on counts
    lower_oom_score()
    os.nice(NICENESS)
    place = Place(request.get("folder"))
    if place.own_root:
        for stream in (out, err, late):
            os.fchown(stream, request["user"], request["user"])  # /dev/stdout can be opened
        jail.enter_room(room, plan["network"])
        jail.become_user()
    os.setsid()
    os.dup2(control, CONTROL_FD, inheritable=False)
    os.dup2(late, LATE_FD, inheritable=False)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    jail.close_other_descriptors(CONTROL_FD, LATE_FD)
    jail.die_with_parent()
    os.chdir(place.files)
    sys.path[:0] = ["", SHADOW]
    if not place.own_root:
        os.environ.update(HOME=place.home, TMPDIR=place.tmp)
    os.umask(0o022)
    limits = dict(request["limits"])
    limits["as"] = jail.address_space_bytes() + request["address_bytes"]
    jail.set_limits(limits)
    packages = request.get("packages") or plan["packages"]
    landlock = lower(place, plan, packages)
    name_packages(packages)
    reseed()
    hello = {"t": "hello", "python": sys.version.split()[0], "landlock": landlock}
    session = Kernel(shell, place.tmp, packages)
    if request.get("primed"):
        session.prime()
    shell.user_ns["_dh"][:] = [place.files]  # where `%cd -` goes back to
    session.serve(hello)


def rehearse(shell, plan):
    """What kernels do first, done in the zygote so often that a fork finds it loaded, cached and specialised.

    Python writes into code that it runs for the first times, and a fork must copy each page that it writes to.
    """
    os.environ.clear()
    path = f"{SHADOW}/bin:{plan['bin']}:/usr/local/bin:/usr/bin:/bin"
    os.environ.update(ENVIRON, PATH=path, HOME="/home/user", TMPDIR="/tmp")
    names = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")
    own = {name: getattr(sys, name) for name in names}
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull, "r+b", buffering=0) as null:
        os.dup2(theirs.fileno(), CONTROL_FD)
        os.dup2(null.fileno(), LATE_FD)
        kernel = Kernel(shell, "/tmp", None)
        Current.channel = kernel.channel
        for _ in range(REHEARSALS):
            jail.rehearse()
            reseed()
            kernel.channel.send(kernel.exec({"id": "", "code": WARMING, "lang": "python"}))
            ours.recv(1 << 16)
        Current.channel = None
        kernel.leave()
    for name, stream in own.items():
        setattr(sys, name, stream)
    forget(shell)


class Place:
    """Where a session's files are: in a root of its own, or in a folder of the host."""

    def __init__(self, folder):
        self.own_root = folder is None
        self.files = "/files" if folder is None else f"{folder}/files"
        self.tmp = "/tmp" if folder is None else f"{folder}/tmp"
        self.home = "/home/user" if folder is None else f"{folder}/home"


def lower(place, plan, packages):
    """Capabilities, Landlock, seccomp, as the session's level wants them. Gives Landlock's ABI."""
    landlock = 0
    if place.own_root:
        jail.drop_capabilities()
        landlock = jail.restrict_paths(jail.READABLE, jail.WRITABLE, listed=["/"])
    else:
        jail.have_no_capabilities()
        if plan["level"] == "restricted":
            writable = [place.files, place.tmp, place.home]
            readable = [*plan["readable"], *([packages] if packages else [])]
            landlock = jail.restrict_paths(readable, writable, network=plan["network"])
    jail.install_filters(plan["session_filters"])
    return landlock


def name_packages(folder):
    """Tells programs of the session where its packages are."""
    if folder is not None:
        os.environ["SANDBOX_PACKAGES"] = folder
        os.environ["PATH"] += f":{folder}/bin"


def lower_oom_score():
    """Under memory pressure the host kills a session before it kills the service."""
    try:
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(score, b"900")
        os.close(score)
    except OSError:
        pass


def reseed():
    """numpy's legacy global state was copied by the fork; `random` reseeds itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))  # a list of them would load half of numpy


class Streams:
    """Text layers on descriptors 1 and 2, and the copies that undo what a cell did to them."""

    def __init__(self, tmp):
        self.tmp = tmp
        self.out, self.err = self._layer(1, 32768), self._layer(2, 8192)
        self.late = self._layer(LATE_FD, 8192)
        self.saved = [(1, os.dup(1)), (2, os.dup(2))]
        for _, descriptor in self.saved:
            os.set_inheritable(descriptor, False)
        self.given = False
        self._install_stdin()
        self.restore()

    @staticmethod
    def _layer(descriptor, size):
        raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False), size)
        # nothing that a program prints can raise an encoding error
        return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def restore(self):
        """User code may have closed, redirected or replaced its streams."""
        for wanted, saved in self.saved:
            try:
                same = os.path.sameopenfile(wanted, saved)
            except OSError:
                same = False
            if not same:
                os.dup2(saved, wanted)
        if not usable(self.out):
            self.out = self._layer(1, 32768)
        if not usable(self.err):
            self.err = self._layer(2, 8192)
        if sys.stdout is not self.out or sys.stderr is not self.err:
            sys.stdout = sys.__stdout__ = self.out
            sys.stderr = sys.__stderr__ = self.err
        self.part_threads()  # what they print from here on comes after the cell

    def part_threads(self):
        """What threads that are there now print from now on is no output of a cell that begins."""
        main = threading.main_thread()
        # threads and not their numbers, which a new thread may get again
        busy = (thread for thread in threading.enumerate() if thread is not main and not waits_for_work(thread))
        earlier = weakref.WeakSet(busy)
        if earlier:  # else nothing stands between a program and its streams: prints stay fast
            sys.stdout = ThreadStream(self.out, self.late, earlier)
            sys.stderr = ThreadStream(self.err, self.late, earlier)

    def give(self, text):
        """Standard input for one cell: the text, then its end; without text it ends at once."""
        if text is None and not self.given and self._reads_nothing():
            return
        if text is None:
            source = os.open("/dev/null", os.O_RDONLY)
        else:
            source = os.open(self.tmp, os.O_TMPFILE | os.O_RDWR, 0o600)
            with open(source, "wb", closefd=False) as file:
                file.write(text.encode("utf-8", "surrogatepass"))
            os.lseek(source, 0, os.SEEK_SET)
        if source != 0:  # the lowest free one, when a cell has closed it
            os.dup2(source, 0)
            os.close(source)
        os.set_inheritable(0, True)
        self.given = text is not None
        self._install_stdin()

    def _reads_nothing(self):
        """Whether descriptor 0 and sys.stdin are as they were left."""
        try:
            is_null = os.fstat(0).st_rdev == NULL_DEVICE
        except OSError:
            return False
        return is_null and sys.stdin is self.input and usable(self.input)

    def _install_stdin(self):
        raw = io.BufferedReader(io.FileIO(0, "r", closefd=False))
        self.input = sys.stdin = sys.__stdin__ = io.TextIOWrapper(raw, encoding="utf-8", errors="replace")


def usable(stream):
    """False for a stream that was closed or has lost its buffer."""
    try:
        return not stream.closed
    except ValueError:
        return False


def waits_for_work(thread):
    """Whether it is a pool's thread without work: what it prints next is the doing of a cell to come."""
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code in idle_loops()


def idle_loops():
    """The code that threads of pools are in while they wait."""
    pools = [("concurrent.futures.thread", "_worker"), ("multiprocessing.pool", "worker")]
    loops = [getattr(sys.modules.get(module), name, None) for module, name in pools]
    return [loop.__code__ for loop in loops if loop is not None]


class ThreadStream(io.TextIOBase):
    """A stream that is another one for some threads."""

    def __init__(self, own, late, earlier):
        self._own, self._late, self._earlier = own, late, earlier

    def write(self, text):
        stream = self._late if threading.current_thread() in self._earlier else self._own
        return stream.write(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def flush(self):
        self._own.flush()

    def writable(self):
        return True

    def fileno(self):
        return self._own.fileno()

    @property
    def buffer(self):
        return self._own.buffer

    @property
    def encoding(self):
        return self._own.encoding

    @property
    def errors(self):
        return self._own.errors


class Kernel:
    """Runs one cell after another; only a running cell can be interrupted."""

    def __init__(self, shell, tmp, packages):
        self.shell = shell
        self.packages = packages
        self.streams = Streams(tmp)
        self.channel = Channel(CONTROL_FD)
        self.pid = os.getpid()
        self.running = False

    def leave(self):
        """Closes what it has open, as if it had never been."""
        self.channel.socket.close()
        for descriptor in (LATE_FD, *(saved for _, saved in self.streams.saved)):
            os.close(descriptor)

    def prime(self):
        """Runs a cell that leaves nothing behind: its pages are this process's own after it."""
        self.exec({"id": None, "code": WARMING, "lang": "python"})
        forget(self.shell)

    def serve(self, hello):
        Current.channel = self.channel
        terminal.install(self.shell)
        os.register_at_fork(after_in_child=leave_session)
        signal.signal(signal.SIGINT, self.on_interrupt)
        self.channel.send(hello)
        while True:
            frame = self.channel.receive()
            if frame.get("t") == "exec":
                self.channel.send(self.exec(frame))
            elif frame.get("t") == "environ":
                os.environ.update(frame["environ"])

    def add_packages(self):
        """At the end of the path. What their .pth files do is code of the session: it comes with its first cell."""
        packages, self.packages = self.packages, None
        if packages is not None:
            site.addsitedir(packages)

    def on_interrupt(self, *_):
        if self.running and not self.channel.defers_interrupt():
            raise KeyboardInterrupt

    def exec(self, frame):
        """Runs a cell and gives the frame that ends it."""
        Current.cell_id = frame["id"]
        Current.errors, Current.display_failed, Current.began = 0, False, False
        status, more = "error", {"exit_code": 1}
        undo = {}
        try:
            try:
                undo = set_environ(frame.get("env") or {})
                signal.signal(signal.SIGINT, self.on_interrupt)
                self.streams.give(frame.get("stdin"))
                self.streams.part_threads()
                self.running = True
                self.add_packages()
                Current.began = True
                status, more = self.run(frame)
            finally:
                self.running = False
        except KeyboardInterrupt as error:
            status, more = "interrupted", {"exit_code": 130}
            self.report(error)
        except BaseException as error:
            self.fail(error, frame)
        if os.getpid() != self.pid:
            os._exit(0)  # a child of os.fork() that ran off the end of the cell
        set_environ(undo)
        flush()
        self.streams.restore()
        Current.cell_id = None
        return {"t": "done", "id": frame["id"], "status": status, **more}

    def fail(self, error, frame):
        """Something of ours failed: a shell that did so on what user code did to it can run no cell again."""
        is_lasting = Current.began and frame.get("lang") != "sh"
        try:
            self.report(error)
        finally:
            if is_lasting:
                os._exit(EXIT_BROKEN if os.getpid() == self.pid else 0)

    def report(self, error):
        if os.getpid() == self.pid:
            send_error(type(error), error, [traceback.format_exception_only(error)[-1].rstrip()])

    def run(self, frame):
        if frame.get("lang") == "sh":
            return run_shell(frame["code"])
        return run_python(self.shell, frame["code"])


def run_python(shell, code):
    number = shell.execution_count
    result = shell.run_cell(code, store_history=True, silent=False)
    flush()
    # its thread would be one of an earlier cell when the next %%bash prints
    scripts = dict.get(shell.magics_manager.registry, "ScriptMagics")  # without loading it
    if scripts is not None:
        scripts.stop_event_loop()
    # IPython 9 keeps every rich output and exception for ever
    shell.history_manager.outputs.clear()
    shell.history_manager.exceptions.clear()
    error = result.error_before_exec or result.error_in_exec
    if error is not None and not still_works():
        raise RuntimeError("Python itself no longer works here") from error
    if error is None and Current.display_failed:
        return "error", {"n": number, "exit_code": 1}
    if error is None:
        if Current.errors:  # something could not be shown, or not in full
            print(Current.traceback, file=sys.stderr, flush=True)
        return "ok", {"n": number, "exit_code": 0}
    if isinstance(error, bdb.BdbQuit):  # IPython takes it for a person's wish
        send_error(bdb.BdbQuit, bdb.BdbQuit(terminal.NO_DEBUGGER), [f"BdbQuit: {terminal.NO_DEBUGGER}"])
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", {"n": number, "exit_code": 130}
    if isinstance(error, SystemExit):
        return system_exit(error, number)
    return "error", {"n": number, "exit_code": 1}


def still_works():
    """False when a cell has broken what every cell needs: then only a new interpreter helps."""
    try:
        return eval(compile("1 + 1", "<check>", "eval")) == 2 and sys.modules.get("builtins") is builtins
    except BaseException:  # such as what an audit hook raises
        return False


def system_exit(error, number):
    """sys.exit() ends the cell with its code; the session lives on."""
    code = error.code if isinstance(error.code, int) else int(error.code is not None)
    code &= 0xFF
    return ("ok" if code == 0 else "error"), {"n": number, "exit_code": code}


def set_environ(changes):
    """Applies changes to the environment (None removes) and gives the changes that undo them."""
    undo = {name: os.environ.get(name) for name in changes}
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return undo


def leave_session():
    """A child made by user code has no session socket."""
    Current.channel = None
    Current.cell_id = None
    try:
        os.close(CONTROL_FD)
    except OSError:
        pass
