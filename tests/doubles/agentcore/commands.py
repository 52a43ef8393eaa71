"""Shell commands: one that a call waits for, on a terminal or on pipes, and tasks in the background."""

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
import time

from .guest import kill_group
from .identifiers import ulid

# the kernel's limit for one argument (MAX_ARG_STRLEN) counts the zero byte at its end
COMMAND_AT_MOST = 131_071
PIECE = 64 * 1024
LEFT_AT_MOST = 1 << 20  # bytes that a terminal or a pipe can hold
SIZE = struct.pack("4H", 24, 80, 0, 0)


class Output:
    """Collects what a descriptor gives, without making the program that writes wait."""

    def __init__(self, descriptor):
        self.descriptor, self.pieces, self.open = descriptor, [], True
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self.read)

    def read(self):
        """The number of bytes that were there."""
        try:
            piece = os.read(self.descriptor, PIECE)
        except BlockingIOError:
            return 0
        except OSError:  # so ends a terminal
            piece = b""
        if not piece:
            self.close()
        self.pieces.append(piece)
        return len(piece)

    def close(self):
        if self.open:
            self.open = False
            asyncio.get_running_loop().remove_reader(self.descriptor)
            os.close(self.descriptor)

    def finish(self):
        """All of it, once its writers have ended; what a daemon writes for ever is cut."""
        left = LEFT_AT_MOST
        while self.open and left > 0 and (size := self.read()):
            left -= size
        self.close()
        return b"".join(self.pieces).decode("utf-8", "replace")


async def run(guest, home, command, terminal):
    """What structuredContent says of a command."""
    began = time.perf_counter()
    ours, theirs = open_terminal(guest) if terminal else open_pipes()
    outputs = [Output(descriptor) for descriptor in ours]
    try:
        process = await guest.spawn(["bash", "-c", command], home, **theirs)
    except BaseException:
        close(outputs)
        raise
    finally:
        for descriptor in set(theirs.values()):
            os.close(descriptor)
    code = await process.wait()
    kill_group(process.pid)
    texts = [output.finish() for output in outputs]
    return {
        "stdout": texts[0],
        "stderr": "" if terminal else texts[1],
        "exitCode": min(abs(code), 1) if terminal else shell_code(code),
        "executionTime": time.perf_counter() - began,
    }


def close(outputs):
    for output in outputs:
        output.close()


def shell_code(code):
    return 128 - code if code < 0 else code


def open_terminal(guest):
    """Not as the controlling one: when its leader ends, the kernel hangs such a terminal up, unread output and all."""
    ours, theirs = os.openpty()
    guest.own(theirs)  # for redirections to /dev/stderr
    fcntl.ioctl(ours, termios.TIOCSWINSZ, SIZE)
    return [ours], {"stdin": theirs, "stdout": theirs, "stderr": theirs}


def open_pipes():
    output, stdout = os.pipe()
    problems, stderr = os.pipe()
    return [output, problems], {"stdin": os.open(os.devnull, os.O_RDONLY), "stdout": stdout, "stderr": stderr}


class Task:
    """A command in the background; what it writes goes to a file that the session does not list."""

    def __init__(self, home):
        self.id, self.began, self.stopped = ulid(), time.perf_counter(), False
        self.path = f"{home}/task-{self.id}"
        self.process = None

    async def start(self, guest, home, command):
        with open(self.path, "wb") as file:
            streams = {"stdin": asyncio.subprocess.DEVNULL, "stdout": file, "stderr": asyncio.subprocess.STDOUT}
            self.process = await guest.spawn(["bash", "-c", command], home, **streams)
        return self

    async def stop(self):
        if self.process.returncode is None:
            self.stopped = True
            kill_group(self.process.pid)
            await self.process.wait()

    def describe(self):
        """What structuredContent says of it now."""
        code, output = self.process.returncode, ""
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            output = file.read().decode("utf-8", "replace")
        found = {"taskId": self.id, "taskStatus": self.status(code), "stdout": output, "stderr": ""}
        if code is not None:
            found["exitCode"] = shell_code(code)
        return {**found, "executionTime": time.perf_counter() - self.began}

    def status(self, code):
        """It may end at any moment: one look at it must do for all that is said."""
        if self.stopped:
            return "canceled"
        if code is None:
            return "working"
        return "failed" if code else "completed"
