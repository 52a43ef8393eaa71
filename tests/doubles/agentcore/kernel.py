"""A session's kernel: started with the first cell, given one cell at a time."""

import asyncio
import contextlib
import json
import signal
import socket
import struct

from .guest import kill_group

LAST_WORDS = 0.05  # seconds for what a dead kernel has sent
BUFFER = 1 << 20
DEATH = {"stdout": "", "stderr": "kernel died\n", "exitCode": 137, "executionTime": 0.0}


class Kernel:
    """The process that keeps the state of cells."""

    def __init__(self, guest, home, kind, breaks):
        self.guest, self.home, self.kind = guest, home, kind
        self.breaks = breaks  # a dead one is not replaced
        self.turn = asyncio.Lock()
        self.process = None

    @property
    def pid(self):
        return self.process.pid if self.process and self.process.returncode is None else None

    async def execute(self, code, clear, on_handed):
        """The answer to a cell; None when there is no kernel any more."""
        async with self.turn:
            if self.process is None or (self.pid is None and not self.breaks):
                await self.start()
            if self.pid is None:
                return None
            on_handed()
            answer = await self.ask({"code": code, "clear": clear})
            if answer is not None:
                return answer
            await self.end()
            return None if self.breaks else DEATH

    async def start(self):
        await self.end()
        ours, theirs = socket.socketpair()
        with theirs:
            command = [self.guest.python, "-u", self.guest.worker, str(theirs.fileno()), self.kind]
            streams = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.DEVNULL)
            self.process = await self.guest.spawn(command, self.home, pass_fds=[theirs.fileno()], **streams)
        self.reader, self.writer = await asyncio.open_connection(sock=ours, limit=BUFFER)

    async def ask(self, message):
        """None when the kernel dies instead of answering."""
        asking = asyncio.create_task(self.exchange(json.dumps(message).encode()))
        ending = asyncio.create_task(self.process.wait())
        # the process counts, not the socket: a forked child may hold that open
        await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({asking}, timeout=LAST_WORDS)
        ending.cancel()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            return await asking
        return None

    async def exchange(self, body):
        self.writer.write(struct.pack(">I", len(body)) + body)
        (size,) = struct.unpack(">I", await self.reader.readexactly(4))
        return json.loads(await self.reader.readexactly(size))

    async def kill(self):
        """As when it runs out of memory: only the process itself."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def end(self):
        """Ends the process and the programs that its cells left."""
        if self.process is None:
            return
        kill_group(self.process.pid)
        await self.process.wait()
        self.writer.close()
