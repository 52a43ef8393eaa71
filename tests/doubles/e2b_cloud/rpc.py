"""Connect RPC in JSON: messages alone, and streams of frames."""

import asyncio
import base64
import contextlib
import json
import struct

from aiohttp import web

from . import filesystem, process
from .paths import BadPath, UnknownUser, home

STATUS = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
LAST = 2
STREAMS = {
    ("process.Process", "Start"): process.start,
    ("process.Process", "Connect"): process.connect,
    ("process.Process", "StreamInput"): process.stream_input,
    ("filesystem.Filesystem", "WatchDir"): filesystem.watch_dir,
}
CALLS = {"process.Process": process.CALLS, "filesystem.Filesystem": filesystem.CALLS}


class RpcError(Exception):
    """A Connect error."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code

    def body(self):
        return {"code": self.code, "message": str(self)}


async def handle(request, sandbox, service, method):
    stream = STREAMS.get((service, method))
    call = CALLS[service].get(method)
    try:
        directory = home(user_of(request))
    except UnknownUser as error:
        return answer_error(RpcError("unauthenticated", f"invalid username: {error}"))
    if stream is None and call is None:
        return answer_error(RpcError("unimplemented", f"{service}.{method} is not implemented"))
    expected = "application/connect+json" if stream else "application/json"
    if request.content_type != expected:
        return web.Response(status=415, headers={"Accept-Post": expected})
    if stream:
        return await Stream(request, sandbox, directory).run(stream)
    try:
        message = json.loads(await request.read() or b"{}")
        if not isinstance(message, dict):
            raise ValueError("not an object")
        return web.json_response(translated(call, sandbox, message, directory))
    except ValueError as error:
        return answer_error(RpcError("invalid_argument", f"unmarshal message: {error}"))
    except RpcError as error:
        return answer_error(error)


def translated(call, *arguments):
    """Calls, and turns what the operating system says into errors of the protocol."""
    try:
        return call(*arguments)
    except LookupError as error:
        raise RpcError("not_found", error.args[0]) from error
    except FileExistsError as error:
        raise RpcError("already_exists", error.args[0]) from error
    except (BadPath, ValueError) as error:
        raise RpcError("invalid_argument", str(error)) from error
    except NotImplementedError as error:
        raise RpcError("unimplemented", str(error)) from error
    except OSError as error:
        raise RpcError("internal", error.strerror or str(error)) from error


def answer_error(error):
    return web.json_response(error.body(), status=STATUS[error.code])


def user_of(request):
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    if kind != "Basic":
        return None
    with contextlib.suppress(ValueError):
        return base64.b64decode(value).decode().split(":")[0]
    raise UnknownUser("not base64")


class Stream:
    """One call whose answer, and perhaps request, is a stream of frames."""

    def __init__(self, request, sandbox, directory):
        self.request, self.sandbox, self.directory = request, sandbox, directory
        self.fault = request["fault"]
        self.sent = 0
        self.keepalive = float(request.headers.get("Keepalive-Ping-Interval") or 90)
        milliseconds = int(request.headers.get("Connect-Timeout-Ms") or 0)
        self.timeout = milliseconds / 1000 if milliseconds else None

    async def run(self, method):
        self.response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
        self.response.enable_chunked_encoding()
        last = {}
        try:
            async with asyncio.timeout(self.timeout):
                await method(self)
        except TimeoutError:
            last = {"error": RpcError("deadline_exceeded", "context deadline exceeded").body()}
        except ConnectionError:
            raise
        except Exception as error:
            last = {"error": self.error_of(error).body()}
        if self.fault.get("action") != "no_end" or not self.response.prepared:
            await self.frame(last, LAST)
        with contextlib.suppress(ConnectionError):
            await self.response.write_eof()
        return self.response

    def error_of(self, error):
        try:
            translated(raise_again, error)
        except RpcError as known:
            return known

    async def send(self, message):
        """Sends a frame, if no fault has it cut or the end withheld."""
        if self.fault.get("action") == "cut" and self.sent >= self.fault.get("after", 0):
            self.request.transport.abort()
            raise ConnectionResetError("cut by a fault")
        if self.fault.get("action") == "no_end" and "end" in message.get("event", {}):
            return
        self.sent += 1
        await self.frame(message, 0)
        if self.fault.get("action") == "garbage" and self.sent == 1:
            await self.response.write(struct.pack(">BI", 0, 8) + b"not JSON")

    async def frame(self, message, flags):
        if not self.response.prepared:  # not before the request is read: clients stop sending at an early answer
            await self.response.prepare(self.request)
        data = json.dumps(message).encode()
        await self.response.write(struct.pack(">BI", flags, len(data)) + data)

    async def messages(self):
        """The frames of the request, as they come."""
        content = self.request.content
        if self.request._read_bytes is not None:
            content = asyncio.StreamReader()
            content.feed_data(self.request._read_bytes)
            content.feed_eof()
        while True:
            try:
                flags, length = struct.unpack(">BI", await content.readexactly(5))
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise ValueError("protocol error: incomplete envelope") from error
                return
            if flags & LAST:
                return
            if flags:
                raise ValueError("protocol error: compressed frames were not agreed on")
            message = json.loads(await content.readexactly(length))
            if not isinstance(message, dict):
                raise ValueError("unmarshal message: not an object")
            yield message

    async def message(self):
        """The one message of a request that is no stream."""
        found = [message async for message in self.messages()]
        if len(found) != 1:
            raise ValueError("unary request has zero or more than one message")
        return found[0]


def raise_again(error):
    raise error
