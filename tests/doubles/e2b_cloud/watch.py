"""Watches a directory of a sandbox through inotify."""

import asyncio
import contextlib
import ctypes
import os
import struct
import uuid

CREATE, MODIFY, ATTRIB, DELETE, MOVED_FROM, MOVED_TO, IS_DIRECTORY = 0x100, 0x2, 0x4, 0x200, 0x40, 0x80, 0x40000000
KINDS = {
    CREATE: "EVENT_TYPE_CREATE",
    MOVED_TO: "EVENT_TYPE_CREATE",
    MODIFY: "EVENT_TYPE_WRITE",
    DELETE: "EVENT_TYPE_REMOVE",
    MOVED_FROM: "EVENT_TYPE_RENAME",
    ATTRIB: "EVENT_TYPE_CHMOD",
}
libc = ctypes.CDLL(None, use_errno=True)


class Watcher:
    """Collects events until somebody takes them."""

    def __init__(self, sandbox, path, recursive, entry):
        self.sandbox, self.path, self.recursive, self.entry = sandbox, path, recursive, entry
        self.id = uuid.uuid4().hex[:12]
        self.events, self.news = [], asyncio.Event()
        self.directories = {}  # by inotify's number: the path below the watched one
        self.loop = asyncio.get_running_loop()
        self.inotify = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.inotify < 0:
            raise OSError(ctypes.get_errno(), "error creating watcher")
        self.add("")
        self.loop.add_reader(self.inotify, self.read)
        sandbox.watchers[self.id] = self

    def add(self, below):
        real = self.sandbox.box.real(os.path.join(self.path, below))
        number = libc.inotify_add_watch(self.inotify, real.encode(), sum(KINDS))
        if number < 0:
            return
        self.directories[number] = below
        if self.recursive:
            with contextlib.suppress(OSError), os.scandir(real) as entries:
                for found in [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]:
                    self.add(os.path.join(below, found))

    def read(self):
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.inotify, 1 << 16)
            while data:
                number, mask, _, length = struct.unpack_from("iIII", data)
                name, data = data[16 : 16 + length].rstrip(b"\0").decode("utf-8", "replace"), data[16 + length :]
                if number in self.directories and name:
                    self.on_event(os.path.join(self.directories[number], name), mask)

    def on_event(self, name, mask):
        for bit, kind in KINDS.items():
            if mask & bit:
                event = {"name": name, "type": kind}
                if self.entry:
                    with contextlib.suppress(OSError):
                        event["entry"] = self.entry(self.sandbox, os.path.join(self.path, name))
                self.events.append(event)
        if self.recursive and mask & IS_DIRECTORY and mask & (CREATE | MOVED_TO):
            self.add(name)
        self.news.set()

    def take(self):
        self.read()
        events, self.events = self.events, []
        self.news.clear()
        return events

    def close(self):
        if self.sandbox.watchers.pop(self.id, None):
            self.loop.remove_reader(self.inotify)
            os.close(self.inotify)
