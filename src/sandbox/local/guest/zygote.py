"""The warm Python that sessions are forked from. It runs no user code, ever.

Descriptor 3 is a SOCK_SEQPACKET socket to the warden:
  in : {"op":"start","level":...,"modules":[...],"packages":null|...,"requirements":[...],
        "filters":[...],"session_filters":[...],"readable":[...],"bin":...,"network":...}   once
       {"op":"fork","id":...,"limits":{...},"address_bytes":...,"folder":null|...,"user":...,
        "packages":null|...,"primed":...}
                               + room pidfd, session socket, three pipes, cgroups
        a session with a folder has no room of its own: its namespaces are the host's
  out: {"op":"ready","python":...,"packages":{...},"landlock":7,"threads":1}   once
       {"op":"forked","id":...,"pid":...}                         + pidfd of the kernel
       {"op":"failed","id":...,"errno":...}                       no kernel could be forked
       {"op":"exited","id":...,"code":...}                        negative: a signal
"""

import array
import base64
import gc
import importlib
import importlib.metadata
import json
import multiprocessing.context
import os
import re
import select
import selectors
import signal
import socket
import sys
import traceback

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # fork copies only the calling thread: there must be no other
os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")

# the thread limits come before any import
from interpreterd_guest import figures, fonts, jail, kernel, loops  # noqa: E402
from interpreterd_guest import shell as ipython  # noqa: E402

WARDEN_FD = 3
MAX_MESSAGE = 1 << 18


def main():
    warden = socket.socket(fileno=WARDEN_FD)
    warden.set_inheritable(False)
    loops.install()
    # since Python 3.14 it is forkserver, whose processes know nothing that a cell defines
    multiprocessing.context._default_context._default_context = multiprocessing.get_context("fork")
    start, _ = receive(warden)
    shell = ipython.make_shell()
    modules = start["modules"] + of_layer(start["packages"], start["requirements"])
    packages = warm(shell, modules)
    start["session_filters"] = [base64.b64decode(program) for program in start["session_filters"]]
    jail.no_new_privileges()
    jail.adopt_orphans()
    selectors.DefaultSelector = selectors.PollSelector  # not every session has epoll
    # The long allow-list is paid for once and inherited by every fork; it still permits setns,
    # which each kernel takes back.
    jail.install_filters(base64.b64decode(program) for program in start["filters"])
    forget_fonts()
    kernel.rehearse(shell, start)
    gc.collect()
    gc.freeze()
    jail.use_huge_pages()
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    ready = {"python": sys.version.split()[0], "packages": packages, "landlock": jail.landlock_abi()}
    send(warden, {"op": "ready", "threads": threads, **ready})
    Zygote(warden, shell, start).serve()


def of_layer(folder, requirements):
    """The modules that the packages of a layer bring. Its .pth files are left to sessions."""
    if folder is None:
        return []
    sys.path.append(folder)
    wanted = {re.match(r"[A-Za-z0-9.-]+", requirement).group() for requirement in requirements}
    brought = importlib.metadata.packages_distributions()
    normal = {module: {re.sub(r"[-_.]+", "-", name).lower() for name in names} for module, names in brought.items()}
    return sorted(module for module, names in normal.items() if names & wanted and module.isidentifier())


def warm(shell, names):
    """Pays the costs of first use once, before any fork. Gives all packages with their versions."""
    imported = set()
    for name in names:
        try:
            importlib.import_module(name)
            imported.add(name)
        except Exception:
            traceback.print_exc()  # the service logs it; a room without the package still works
    shell.run_cell("1+1", store_history=False, silent=True)
    if "matplotlib" in imported:
        warm_matplotlib(shell)
    if "pandas" in imported:
        shell.run_cell(
            "import pandas as _p\n_d=_p.DataFrame({'a':[1,2],'b':['x','y']})\n"
            "_d.groupby('b').a.sum();_d._repr_html_();_d.describe();repr(_d)\ndel _p,_d",
            store_history=False,
            silent=True,
        )
    shell.events.register("post_execute", figures.show_left_open)
    shell.run_cell("raise ValueError('warm')", store_history=False, silent=True)
    ipython.forget(shell)
    return {found.name: found.version for found in importlib.metadata.distributions()}


def warm_matplotlib(shell):
    shell.enable_matplotlib("inline")
    try:
        fonts.add_to(importlib.import_module("matplotlib"))
    except (ImportError, OSError):
        pass  # a guest without the font draws boxes for CJK glyphs, and everything else works
    shell.run_cell(
        "import io as _io, matplotlib.pyplot as _p\n_f=_p.figure();_p.plot([1,2]);_p.title('a')\n"
        "_f.savefig(_io.BytesIO(),format='png');_p.close('all')\ndel _p,_f,_io",
        store_history=False,
        silent=True,
    )


def forget_fonts():
    """matplotlib closes its fonts in each child: there are none to close when none are open."""
    manager = sys.modules.get("matplotlib.font_manager")
    if hasattr(getattr(manager, "_get_font", None), "cache_clear"):
        manager._get_font.cache_clear()


class Zygote:
    """Forks a kernel for each request and tells the warden how each one ended."""

    def __init__(self, warden, shell, plan):
        self.warden = warden
        self.shell = shell
        self.plan = plan
        self.own = os.pidfd_open(os.getpid())
        self.sessions = {}

    def serve(self):
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        poll = select.poll()
        poll.register(self.warden, select.POLLIN)
        poll.register(reader, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if reader in ready:
                drain(reader)
                self.reap()
            if self.warden.fileno() in ready:
                request, descriptors = receive(self.warden)
                self.fork(request, descriptors)

    def fork(self, request, descriptors):
        try:
            in_host = request.get("folder") is not None
            pid = os.fork() if in_host else self.fork_into(descriptors[0])
            if pid == 0:
                self.become_kernel(request, descriptors)
            self.sessions[pid] = request["id"]
            descriptors.append(os.pidfd_open(pid))
            send(self.warden, {"op": "forked", "id": request["id"], "pid": pid}, descriptors[-1:])
        except OSError as error:  # no process to be had, or the room is gone: this session's fault alone
            send(self.warden, {"op": "failed", "id": request["id"], "errno": error.errno or 0})
        for descriptor in descriptors:
            os.close(descriptor)

    def fork_into(self, room):
        """Forks into the pid namespace of a room; the zygote itself stays in its own."""
        jail.join_pid_namespace(room)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                jail.join_pid_namespace(self.own)
        return pid

    def become_kernel(self, request, descriptors):
        """Never returns: the child is the session's kernel from here to its end."""
        try:
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            self.warden.detach()
            kernel.live(self.shell, request, descriptors, self.plan)
        except BaseException:
            try:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(kernel.EXIT_BROKEN)

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            send(self.warden, {"op": "exited", "id": self.sessions.pop(pid, None), "code": code})


def drain(reader):
    try:
        os.read(reader, 4096)
    except BlockingIOError:
        pass


def send(warden, message, descriptors=()):
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    warden.sendmsg([json.dumps(message).encode()], ancillary)


def receive(warden):
    """One message and its descriptors. Ends the zygote when the warden is gone."""
    data, ancillary, _, _ = warden.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC)
    if not data:
        os._exit(0)
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    return json.loads(data), list(descriptors)
