"""process.Process of envd: starts programs, follows their output, sends them input and signals."""

import asyncio
import base64
import contextlib
import fcntl
import os
import signal
import struct
import termios

from .paths import resolve

PIECE = 32 * 1024
LATE_CONNECT = 30  # seconds for which the end of a process is kept
WAITING_AT_MOST = 64  # events for one slow client
SIGNALS = {"SIGNAL_SIGKILL": 9, "SIGNAL_SIGTERM": 15, 9: 9, 15: 15}


class Process:
    """A program that was started, and those who follow it."""

    def __init__(self, config, tag, child):
        self.config, self.tag, self.child, self.pid = config, tag, child, child.pid
        self.followers = []
        self.end = None
        self.stdin = self.terminal = None

    async def emit(self, event):
        for queue in list(self.followers):
            await queue.put(event)

    async def pump(self, readers):
        await asyncio.gather(*(self.forward(reader, name) for name, reader in readers.items()))
        code = await self.child.wait()
        status = f"exit status {code}" if code >= 0 else f"signal: {signal_name(-code)}"
        self.end = {"status": status}  # zero values are left out, as proto3 JSON does
        if code >= 0:
            self.end["exited"] = True
        if code:
            self.end.update(exitCode=max(code, -1), error=status)
        if self.stdin:
            self.stdin.close()
        await self.emit({"end": self.end})

    async def forward(self, reader, name):
        with contextlib.suppress(OSError):  # a terminal ends with an error
            while piece := await reader.read(PIECE):
                await self.emit({"data": {name: base64.b64encode(piece).decode()}})

    def write(self, field, text):
        data = base64.b64decode(text)
        if field == "pty" and self.terminal is not None:
            os.write(self.terminal, data)
        elif field == "stdin" and self.stdin is not None and not self.stdin.is_closing():
            self.stdin.write(data)
        else:
            raise OSError(f"error writing to {field}: not enabled or closed")


def signal_name(number):
    names = {9: "killed", 15: "terminated", 2: "interrupt", 11: "segmentation fault", 6: "aborted", 1: "hangup"}
    return names.get(number, signal.Signals(number).name.lower())


async def start(stream):
    message = await stream.message()
    process = await launch(stream, message)
    queue = follow(process)
    process.life = asyncio.create_task(live(stream.sandbox, process))
    if stream.timeout is not None:
        # the deadline kills, a client that goes away does not
        asyncio.get_running_loop().call_later(stream.timeout, process.child.signal, signal.SIGKILL)
    await relay(stream, process, queue)


async def live(sandbox, process):
    await process.pump(process.readers)
    await asyncio.sleep(LATE_CONNECT)
    sandbox.processes.pop(process.pid, None)


async def launch(stream, message):
    sandbox, config = stream.sandbox, message.get("process") or {}
    if not isinstance(config.get("cmd"), str) or not config["cmd"]:
        raise ValueError("process.cmd is missing")
    check_strings(config)
    cwd = resolve(config.get("cwd") or "", stream.directory)
    if not os.path.isdir(sandbox.box.real(cwd)):
        raise ValueError(f"cwd '{cwd}' does not exist")
    env = {"HOME": stream.directory, "E2B_SANDBOX": "true", **sandbox.envs, **config.get("envs", {})}
    argv = [config["cmd"], *config.get("args", [])]
    with_stdin = message.get("stdin", True)
    ours, theirs = open_terminal(message["pty"]) if "pty" in message else open_pipes(with_stdin)
    try:
        child = await sandbox.box.spawn(argv, cwd, env, theirs, terminal="pty" in message)
    except ProcessLookupError as error:
        for descriptor in ours.values():
            os.close(descriptor)
        raise ValueError(f"error starting process '{config['cmd']}': {error}") from error
    process = Process(config, message.get("tag"), child)
    process.terminal = ours.get("pty")
    if "stdin" in ours:
        process.stdin = await writer(ours.pop("stdin"))
    process.readers = {name: await reader(descriptor) for name, descriptor in ours.items()}
    sandbox.processes[process.pid] = process
    return process


def check_strings(config):
    args, envs = config.get("args", []), config.get("envs", {})
    fit = isinstance(args, list) and isinstance(envs, dict) and isinstance(config.get("cwd", ""), str)
    if not fit or not all(isinstance(value, str) for value in (*args, *envs, *envs.values())):
        raise ValueError("unmarshal message: process is not as it is described")


def open_pipes(with_stdin):
    """Our ends by name, and the descriptors 0, 1 and 2 of the program."""
    out, out_write = os.pipe()
    problems, problems_write = os.pipe()
    if not with_stdin:
        return {"stdout": out, "stderr": problems}, [os.open(os.devnull, os.O_RDONLY), out_write, problems_write]
    read, write = os.pipe()
    return {"stdout": out, "stderr": problems, "stdin": write}, [read, out_write, problems_write]


def open_terminal(pty):
    ours, theirs = os.openpty()
    set_size(ours, pty.get("size") or {})
    return {"pty": ours}, [theirs, os.dup(theirs), os.dup(theirs)]


def set_size(descriptor, size):
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("4H", size.get("rows", 24), size.get("cols", 80), 0, 0))


async def reader(descriptor):
    found = asyncio.StreamReader(limit=PIECE)
    protocol = asyncio.StreamReaderProtocol(found)
    file = open(descriptor, "rb", buffering=0)  # noqa: SIM115 - the transport closes it
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
    return found


async def writer(descriptor):
    file = open(descriptor, "wb", buffering=0)  # noqa: SIM115 - the transport closes it
    transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, file)
    return transport


def follow(process):
    queue = asyncio.Queue(WAITING_AT_MOST)
    process.followers.append(queue)
    return queue


async def connect(stream):
    process = find(stream.sandbox, await stream.message())
    queue = follow(process)
    if process.end:
        queue.put_nowait({"end": process.end})
    await relay(stream, process, queue)


async def relay(stream, process, queue):
    try:
        await stream.send({"event": {"start": {"pid": process.pid}}})
        event = {}
        while "end" not in event:
            try:
                async with asyncio.timeout(stream.keepalive):
                    event = await queue.get()
            except TimeoutError:
                event = {"keepalive": {}}
            await stream.send({"event": event})
    finally:
        process.followers.remove(queue)
        while not queue.empty():  # lets a pump go on that waits for room
            queue.get_nowait()


async def stream_input(stream):
    process = None
    async for message in stream.messages():
        if "start" in message:
            process = find(stream.sandbox, message["start"])
        elif "data" in message:
            if process is None:
                raise ValueError("the first message must be a start")
            send_input(process, message["data"])
    await stream.send({})


def find(sandbox, message):
    selector = message.get("process") or {}
    if "pid" not in selector and "tag" not in selector:
        raise ValueError("process selector is missing")
    for process in sandbox.processes.values():
        if process.pid == selector.get("pid") or (selector.get("tag") and process.tag == selector["tag"]):
            return process
    kind = "pid" if "pid" in selector else "tag"
    raise LookupError(f"process with {kind} {selector[kind]} not found")


def find_running(sandbox, message):
    process = find(sandbox, message)
    if process.end:
        raise LookupError(f"process with pid {process.pid} not found")
    return process


def send_input(process, message):
    given = message.get("input") or {}
    for field in ("stdin", "pty"):
        if field in given:
            process.write(field, given[field])
            return
    raise ValueError("input is missing")


def list_processes(sandbox, message, directory):
    running = [process for process in sandbox.processes.values() if not process.end]
    return {"processes": [describe(process) for process in running]} if running else {}


def describe(process):
    entry = {"config": process.config, "pid": process.pid}
    return {**entry, "tag": process.tag} if process.tag else entry


def send_signal(sandbox, message, directory):
    process = find_running(sandbox, message)
    if message.get("signal") not in SIGNALS:
        raise NotImplementedError(f"invalid signal: {message.get('signal')}")
    process.child.signal(SIGNALS[message["signal"]])
    return {}


def send_input_once(sandbox, message, directory):
    send_input(find_running(sandbox, message), message)
    return {}


def close_stdin(sandbox, message, directory):
    process = find_running(sandbox, message)
    if process.stdin is None:
        raise OSError("error closing stdin: not enabled")
    process.stdin.close()
    return {}


def update(sandbox, message, directory):
    process = find_running(sandbox, message)
    if process.terminal is not None and "pty" in message:
        set_size(process.terminal, message["pty"].get("size") or {})
    return {}


CALLS = {
    "List": list_processes,
    "SendSignal": send_signal,
    "SendInput": send_input_once,
    "CloseStdin": close_stdin,
    "Update": update,
}
