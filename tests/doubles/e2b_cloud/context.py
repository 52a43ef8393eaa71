"""One code context: a kernel in the sandbox, its runs one after another, its deaths."""

import asyncio
import collections
import contextlib
import json
import os
import signal
import socket
import time
import uuid

HOME = "/home/user"
KEEPALIVE = b'{"type": "keepalive"}'
END = b'{"end": true}'
NOTICE = 0.02  # seconds
LAST_WORDS = 0.02  # seconds for what a dead kernel has sent
READY = b'{"ready": true}'
RESTARTING = ("ContextRestarting", "Context was restarted")
CONNECTION_LOST = ("WebSocketError", "The connections was lost, rerun the code to get the results")
UNEXPECTED_END = (
    "UnexpectedEndOfExecution",
    "Connection to the execution was closed before the execution was finished",
)


class Context:
    """Keeps a kernel alive, and gives it one run at a time."""

    def __init__(self, sandbox, language, cwd):
        self.sandbox, self.language, self.cwd = sandbox, language, cwd
        self.id = str(uuid.uuid4())
        self.turn = asyncio.Lock()
        self.envs = None  # of the sandbox, once the first run has asked for them
        self.interrupted = float("-inf")
        self.runs = collections.deque()  # what the kernel works on, oldest first
        self.channel = self.process = self.restarting = None
        self.closed = False

    async def start(self):
        """Starts the kernel in the home directory and then changes directory, as the server does."""
        await self.start_kernel()
        if self.cwd != HOME:
            await self.run_silently(f"%cd {self.cwd}")
        return self

    async def start_kernel(self):
        ours, theirs = socket.socketpair()
        null = os.open(os.devnull, os.O_RDWR)
        box, python = self.sandbox.box, self.sandbox.cloud.options.python
        descriptors = [null, os.dup(null), os.dup(2), theirs.detach()]  # our stderr hears why it does not start
        argv = [python, "-u", f"{box.tools}/kernel.py"]
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self.process = await box.spawn(argv, HOME, {"E2B_SANDBOX": "true"}, descriptors)
        self.channel = channel = Channel(self)
        await loop.create_connection(lambda: channel, sock=ours)
        # a child that the kernel forked may hold the channel open
        self.process.ended.add_done_callback(lambda _: loop.call_later(LAST_WORDS, channel.transport.abort))
        await channel.ready

    def on_death(self, channel):
        """A kernel that dies is replaced, and the runs hear of it once the new one is there."""
        if channel is not self.channel or self.closed:
            return
        self.channel = None
        if self.sandbox.alive:
            self.restarting = asyncio.create_task(self.restart_after_death())

    async def restart_after_death(self):
        await asyncio.sleep(self.sandbox.cloud.options.restart_delay)
        with contextlib.suppress(ConnectionError):
            await self.start_kernel()
        self.restarting = None
        self.fail_runs(RESTARTING)

    async def restart(self):
        """The restart that a client asks for: also the sandbox's variables are set anew."""
        self.stop()
        self.closed = False
        self.envs = None
        self.interrupted = float("-inf")  # the new kernel never was
        await self.start_kernel()

    def stop(self):
        self.closed = True
        if self.restarting:
            self.restarting.cancel()
            self.restarting = None
        self.fail_runs(CONNECTION_LOST, UNEXPECTED_END)
        if self.channel:
            self.channel.transport.abort()
            self.channel = None
        if self.process:
            self.process.signal(signal.SIGKILL, group=True)

    def fail_runs(self, *errors):
        while self.runs:
            run = self.runs.popleft()
            for name, value in errors:
                event = {"type": "error", "name": name, "value": value, "traceback": ""}
                run.add([json.dumps(event).encode()])
            run.finish()

    async def run_silently(self, code):
        run = self.submit(code, silent=True)
        while await run.next_lines(None):
            pass

    def submit(self, code, silent=False):
        run = Run()
        self.runs.append(run)
        if self.channel:  # else the kernel has just died: the run hears of it
            self.channel.send({"code": code, "silent": silent})
        return run

    async def execute(self, code, env_vars, token):
        """Yields lists of lines, the keepalives among them; closing it interrupts the kernel."""
        keepalive = self.sandbox.cloud.options.keepalive
        async with self.turn:
            code = self.with_variables(code, env_vars, token)
            run = Run() if self.swallows() else self.submit(code)
            try:
                while lines := await run.next_lines(keepalive):
                    yield lines
            except (asyncio.CancelledError, GeneratorExit):
                self.interrupt(run)
                raise
            if env_vars:
                self.submit(self.reset_variables(env_vars), silent=True)

    def noticing(self, events):
        """Closes a run whose connection broke far away: the server sees that a moment later."""

        async def close():
            await asyncio.sleep(NOTICE)
            await events.aclose()

        self.closing = asyncio.create_task(close())
        return lambda: asyncio.shield(self.closing)

    def swallows(self):
        """A run that comes before the interrupt of the last one is aborted, and the server waits for ever."""
        return time.monotonic() - self.interrupted < self.sandbox.cloud.options.interrupt_window

    def interrupt(self, run):
        run.forget()
        if run in self.runs and self.process:
            self.interrupted = time.monotonic()
            self.process.signal(signal.SIGINT, group=True)

    def with_variables(self, code, env_vars, token):
        """The code with assignments in front, unescaped: so does the real server."""
        first = ""
        if self.envs is None:
            self.envs = self.sandbox.envs_for(token)
            first = "\n".join(set_variable(*pair) for pair in self.envs.items())
        second = "\n".join(set_variable(*pair) for pair in (env_vars or {}).items())
        if not first and not second:
            return code
        return f"{indented_like(code, f'{first}{chr(10)}{second}')}\n{code}"

    def reset_variables(self, env_vars):
        lines = []
        for name in env_vars:
            if name in self.envs:
                lines.append(set_variable(name, self.envs[name]))
            else:
                lines.append(f"import os; del os.environ['{name}']")
        return "\n".join(lines)

    def describe(self):
        return {"id": self.id, "language": self.language, "cwd": self.cwd}


class Channel(asyncio.Protocol):
    """The socket to a kernel: lines go to the run that the kernel works on."""

    def __init__(self, context):
        self.context = context
        self.buffer = bytearray()
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def send(self, request):
        self.transport.write(json.dumps(request).encode() + b"\n")

    def data_received(self, data):
        self.buffer += data
        if not data.endswith(b"\n") and b"\n" not in data:
            return
        *lines, rest = self.buffer.split(b"\n")
        self.buffer = bytearray(rest)
        if not self.ready.done() and lines[0] == READY:
            self.ready.set_result(None)
            lines.pop(0)
        runs = self.context.runs
        while lines:
            end = lines.index(END) if END in lines else len(lines)
            if runs and end:
                runs[0].add(lines[:end])
            if end < len(lines) and runs:
                runs.popleft().finish()
            del lines[: end + 1]

    def connection_lost(self, error):
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("the kernel did not start"))
            self.ready.exception()
        self.context.on_death(self)


class Run:
    """The lines of one execution that nobody has taken yet."""

    def __init__(self):
        self.lines = []
        self.finished = self.forgotten = False
        self.waiting = None

    def add(self, lines):
        if not self.forgotten:
            self.lines += lines
            self.wake()

    def finish(self):
        self.finished = True
        self.wake()

    def forget(self):
        self.forgotten = True
        self.lines = []

    def wake(self):
        if self.waiting and not self.waiting.done():
            self.waiting.set_result(None)

    async def next_lines(self, keepalive):
        """Waits for lines; a keepalive when none come in time; nothing at the end."""
        if not self.lines and not self.finished:
            loop = asyncio.get_running_loop()
            self.waiting = loop.create_future()
            timer = loop.call_later(keepalive, self.wake) if keepalive else None
            try:
                await self.waiting
            finally:
                self.waiting = None
                if timer:
                    timer.cancel()
            if not self.lines and not self.finished:
                return [KEEPALIVE]
        lines, self.lines = self.lines, []
        return lines


def set_variable(name, value):
    return f"import os; os.environ['{name}'] = '{value}'"


def indented_like(code, lines):
    first = next((line for line in code.split("\n") if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    return "\n".join(indent + line if line.strip() else line for line in lines.split("\n"))
