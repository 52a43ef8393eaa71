"""Where a sandbox's processes and files live: a process 1 of its own, seen from outside."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile

INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside")
LINKS_AT_MOST = 40
# the Python of the kernels is the host's and cannot be written to: pip installs beside it
SITE = {"PIP_TARGET": "/home/user/site", "PYTHONPATH": "/home/user/site"}


class Boxes:
    """Makes boxes, in the strictest way that this machine allows."""

    def __init__(self, python, plain):
        self.python = shutil.which(python) or python
        self.modes = ["plain"] if plain else ["root", "user", "plain"] if os.geteuid() == 0 else ["user", "plain"]
        # one for all: each box mounts its own file system there, for itself, and nothing is left to remove
        self.directory = os.path.join(tempfile.gettempdir(), f"e2b-double-{os.geteuid()}")
        os.makedirs(self.directory, exist_ok=True)
        self.visible = None

    async def make(self, network):
        if self.visible is None:
            self.visible = await self.directories_of_python()
        while True:
            mode = self.modes[0]
            try:
                return await Box(self, mode, network).start()
            except ConnectionError as error:
                if len(self.modes) == 1:
                    raise
                if mode == self.modes[0]:
                    self.modes.pop(0)
                    print(f"e2b double: mode {mode} is refused here: {error}", file=sys.stderr)

    async def directories_of_python(self):
        """Where the Python of the kernels lives: it must be seen from every sandbox."""
        code = "import os, sys; print(sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), sep='\\n')"
        process = await asyncio.create_subprocess_exec(self.python, "-c", code, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        named = output.decode().splitlines()
        return sorted({*named, *map(os.path.realpath, named)})


class Box:
    """One sandbox's processes and files."""

    def __init__(self, boxes, mode, network):
        self.boxes, self.mode, self.network = boxes, mode, network
        self.plain = mode == "plain"
        self.directory = tempfile.mkdtemp(dir=boxes.directory) if self.plain else boxes.directory
        self.top, self.ended = None, False
        self.buffer = b""
        self.spawned, self.children, self.number = {}, {}, 0
        self.loop = asyncio.get_running_loop()
        self.ready = self.loop.create_future()

    @property
    def tools(self):
        return INSIDE if self.plain else "/.double"

    async def start(self):
        if self.plain:
            for name in ("home/user", "root", "tmp"):
                os.makedirs(f"{self.directory}/{name}")
        self.control, other = socket.socketpair()
        self.loop.add_reader(self.control, self.on_answer)
        program = [sys.executable, "-I", "-S", f"{INSIDE}/init.py", str(other.fileno()), self.directory]
        self.process = await asyncio.create_subprocess_exec(
            *program,
            self.mode,
            self.network,
            *self.boxes.visible,
            pass_fds=(other.fileno(),),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        other.close()
        self.top = await self.ready
        return self

    def on_answer(self):
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.on_end()
            return
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            self.on_message(json.loads(line), descriptors)

    def on_message(self, message, descriptors):
        if "ready" in message:
            self.ready.set_result(descriptors[0])
        elif "refused" in message:
            self.ready.set_exception(ConnectionError(message["refused"]))
        elif "spawn" in message:
            future = self.spawned.pop(message["spawn"])
            if "failed" in message:
                future.set_exception(ProcessLookupError(message["failed"]))
            else:
                child = self.children[message["pid"]] = Child(self, message["pid"])
                future.set_result(child)
        elif "exit" in message and (child := self.children.pop(message["exit"], None)):
            child.ended.set_result(message["code"])

    def on_end(self):
        self.ended = True
        self.loop.remove_reader(self.control)
        gone = ConnectionError("the sandbox ended")
        for future in (self.ready, *self.spawned.values()):
            if not future.done():
                future.set_exception(gone)
        self.ready.exception()
        for child in self.children.values():
            child.ended.set_result(-signal.SIGKILL)
        self.children.clear()

    async def spawn(self, argv, cwd, env, descriptors, terminal=False):
        """Starts a program; the descriptors become its 0, 1, 2, ... and are closed here."""
        base = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/home/user", "USER": "user"}
        full = {**base, **SITE, "LOGNAME": base["USER"], **env}
        if self.plain:
            cwd = self.real(cwd)
            full["HOME"] = self.real(full["HOME"])
        if self.ended:
            raise ConnectionError("the sandbox ended")
        self.number += 1
        future = self.spawned[self.number] = self.loop.create_future()
        request = {"do": "spawn", "number": self.number, "argv": argv, "cwd": cwd, "env": full, "terminal": terminal}
        self.request(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return await future

    def request(self, message, descriptors=()):
        body = json.dumps(message).encode()
        with contextlib.suppress(OSError):  # on_end tells those who wait
            socket.send_fds(self.control, [struct.pack(">I", len(body))], descriptors)
            self.control.sendall(body)

    def signal_all(self, number):
        self.request({"do": "everyone", "number": int(number)})

    def real(self, path, follow=True):
        """What a path of the sandbox is for us. Links are followed as the sandbox would, not as we would."""
        top = self.directory if self.plain else f"/proc/self/fd/{self.top}"
        return top + resolve_links(top, path, follow)

    async def destroy(self):
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.process.wait(), 5)
        if self.process.returncode is None:
            self.process.kill()
        self.on_end()
        self.control.close()
        if self.top is not None:
            os.close(self.top)
            self.top = None


class Child:
    """A process of the sandbox, with its number there."""

    def __init__(self, box, pid):
        self.box, self.pid = box, pid
        self.ended = box.loop.create_future()

    def signal(self, number, group=False):
        if not self.ended.done():
            self.box.request({"do": "signal", "pid": self.pid, "number": int(number), "group": group})

    async def wait(self):
        return await asyncio.shield(self.ended)


def resolve_links(top, path, follow):
    done, todo = [], [part for part in path.split("/") if part not in ("", ".")][::-1]
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            done = done[:-1]
            continue
        here = "/".join([top, *done, part])
        if (todo or follow) and os.path.islink(here):
            links += 1
            if links > LINKS_AT_MOST:
                raise OSError(40, "too many levels of symbolic links")
            target = os.readlink(here)
            if target.startswith("/"):
                done = []
            todo += [piece for piece in target.split("/") if piece not in ("", ".")][::-1]
        else:
            done.append(part)
    return "/" + "/".join(done)
