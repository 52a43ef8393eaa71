"""The way out of the kernel: events, and all that its process and their children print."""

import codecs
import datetime
import io
import json
import os
import select
import threading
import time

FULL = 8192
PAUSE = 0.01  # seconds for which printed text may be held back


class Output:
    """Lines of JSON on the channel, in the order of what happened."""

    def __init__(self, channel):
        self.channel, self.process = channel, os.getpid()
        os.set_inheritable(channel, False)
        self.lock = threading.RLock()
        self.name, self.parts, self.size, self.flushed = "stdout", [], 0, 0.0
        self.silent = self.woken = False
        self.pipes = {}
        self.poll = select.poll()
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            self.capture(descriptor, name)
        self.wake_read, self.wake_write = os.pipe()
        threading.Thread(target=self.pump, daemon=True).start()

    def capture(self, descriptor, name):
        """What is written to the descriptor itself, by C code and by child processes."""
        read, write = os.pipe()
        os.dup2(write, descriptor)
        os.close(write)
        os.set_blocking(read, False)
        self.pipes[read] = (name, codecs.getincrementaldecoder("utf-8")("replace"))
        self.poll.register(read, select.POLLIN)

    def send(self, event):
        self.raw((json.dumps(event) + "\n").encode())

    def raw(self, data):
        if os.getpid() != self.process:
            return  # a child that a cell forked has nothing to say here
        with self.lock:
            while data:
                data = data[os.write(self.channel, data) :]

    def write(self, name, text):
        with self.lock:
            self.read_pipes()
            if name != self.name:
                self.flush()
                self.name = name
            self.parts.append(text)
            self.size += len(text)
            if self.size >= FULL or ("\n" in text and time.monotonic() - self.flushed > PAUSE):
                self.flush()
            elif not self.woken:
                self.woken = True
                os.write(self.wake_write, b".")

    def flush(self):
        with self.lock:
            if self.parts:
                text = "".join(self.parts)
                self.parts, self.size = [], 0
                self.flushed = time.monotonic()
                self.print(self.name, text)

    def print(self, name, text):
        if self.silent:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat()
        text = text.encode("utf-8", "replace").decode()  # lone surrogates cannot be sent
        self.send({"type": name, "text": text, "timestamp": now})

    def read_pipes(self):
        """Sends what has come through the pipes, after what was printed before it."""
        while ready := self.poll.poll(0):
            self.flush()
            for descriptor, _ in ready:
                name, decoder = self.pipes[descriptor]
                if text := decoder.decode(os.read(descriptor, 1 << 16)):
                    self.print(name, text)

    def drain(self):
        with self.lock:
            self.read_pipes()
            self.flush()

    def pump(self):
        poll = select.poll()
        for descriptor in (*self.pipes, self.wake_read):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if self.wake_read in ready:
                os.read(self.wake_read, 64)
                time.sleep(PAUSE)
                self.woken = False
            self.drain()


class Stream(io.TextIOBase):
    """sys.stdout or sys.stderr."""

    encoding, errors = "utf-8", "strict"

    def __init__(self, output, name, descriptor):
        self.output, self._name, self.descriptor = output, name, descriptor
        self.process = os.getpid()

    @property
    def name(self):
        return f"<{self._name}>"

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text)}")
        if os.getpid() != self.process:  # a forked child has no pump
            os.write(self.descriptor, text.encode("utf-8", "replace"))
        elif text:
            self.output.write(self._name, text)
        return len(text)

    def flush(self):
        if os.getpid() == self.process:
            self.output.drain()

    def fileno(self):
        return self.descriptor

    def writable(self):
        return True

    def isatty(self):
        return False
