"""Frames between a kernel and the service: u32 little endian length, then UTF-8 JSON."""

import base64
import json
import os
import socket
import struct
import threading

MAX_FRAME_IN = 32 << 20
MAX_FRAME_OUT = 24 << 20
MAX_TEXT = {"text/plain": 64 << 10, "text/html": 1 << 20, "text/markdown": 256 << 10, "text/latex": 256 << 10}
MAX_VALUE = 12 << 20
MAX_JSON = 4 << 20


def clean(text):
    """Strict JSON readers refuse lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def jsonable(value, depth=0):
    """A JSON value for anything: NaN becomes text, depth and keys are bounded."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else hex(value)  # what JSON readers know as whole
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, str):
        return clean(value)
    if depth > 40:
        return "..."
    if isinstance(value, dict):
        return {clean(str(k)): jsonable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [jsonable(v, depth + 1) for v in value]
    return clean(repr(value))


def bundle(data):
    """IPython's MIME bundle as it travels: text cut at its limit, bytes as base64."""
    out, cut = {}, []
    for mime, value in data.items():
        if isinstance(value, (bytes, bytearray)):
            value, limit = base64.b64encode(value).decode(), MAX_VALUE
        elif isinstance(value, str):
            value, limit = clean(value), MAX_TEXT.get(mime, MAX_VALUE)
        else:
            value, limit = jsonable(value), None
            if len(json.dumps(value)) > MAX_JSON:
                cut.append(mime)
                continue
        if limit and len(value) > limit:
            cut.append(mime)
            if not mime.startswith("text/"):
                continue
            value = f"{value[:limit]}... [{len(value) - limit} more characters]"
        out[mime] = value
    return out, cut


class Channel:
    """Frames on the session socket. A fork made by user code must not speak for the session."""

    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        self.socket.setblocking(True)
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.main_sends = False
        self.interrupted = False

    def defers_interrupt(self):
        """True while a frame is half sent: the interrupt then comes right after it."""
        self.interrupted = self.interrupted or self.main_sends
        return self.main_sends

    def send(self, frame):
        if os.getpid() != self.owner:
            return
        try:
            data = json.dumps(frame, allow_nan=False).encode()
        except (ValueError, TypeError):
            data = json.dumps(jsonable(frame), allow_nan=False).encode()
        if len(data) > MAX_FRAME_OUT:
            dropped = {"t": "dropped", "id": frame.get("id"), "what": frame.get("t"), "bytes": len(data)}
            data = json.dumps(dropped).encode()
        in_main = threading.current_thread() is threading.main_thread()
        with self.lock:  # threads of a cell may display at the same time
            self.main_sends = in_main
            try:
                self.socket.sendall(struct.pack("<I", len(data)) + data)
            except OSError:
                os._exit(0)
            finally:
                self.main_sends = False
        if in_main and self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt

    def receive(self):
        (length,) = struct.unpack("<I", self._read(4))
        if length > MAX_FRAME_IN:
            os._exit(3)
        return json.loads(self._read(length))

    def _read(self, count):
        data = bytearray()
        while len(data) < count:
            try:
                piece = self.socket.recv(min(count - len(data), 1 << 20))
            except InterruptedError:
                continue
            except OSError:
                os._exit(0)
            if not piece:
                os._exit(0)  # the service is gone
            data += piece
        return bytes(data)
