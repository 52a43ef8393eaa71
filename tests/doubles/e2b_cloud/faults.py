"""What the back door orders to go wrong, and the log of what clients sent."""

import asyncio
import json
import re
import socket
import struct

from aiohttp import web

LOG_AT_MOST = 500
BODY_AT_MOST = 100_000
ACTIONS = ("reset", "hang", "cut", "no_end", "head_only_hang", "garbage")
FIELDS = {"match", "times", "skip", "status", "body", "headers", "action", "after", "lines", "delay", "sandbox", "key"}


class Faults:
    """The orders, each for a number of requests."""

    def __init__(self):
        self.orders = []

    def add(self, order):
        unknown = set(order) - FIELDS
        if unknown or order.get("action", "cut") not in ACTIONS or "match" not in order:
            raise ValueError(f"not a fault: {order}")
        re.compile(order["match"])
        self.orders.append({"times": 1, "skip": 0, **order})

    def take(self, request, sandbox, key):
        """The first order for this request, which counts as used; empty when there is none."""
        for order in self.orders:
            if not self.fits(order, request, sandbox, key):
                continue
            if order["skip"] > 0:
                order["skip"] -= 1
                continue
            order["times"] -= 1
            if order["times"] <= 0:
                self.orders.remove(order)
            return order
        return {}

    def fits(self, order, request, sandbox, key):
        if order.get("sandbox") not in (None, sandbox) or order.get("key") not in (None, key):
            return False
        return re.search(order["match"], f"{request.method} {request.path}")


async def apply(request, fault):
    """Does what comes instead of an answer; None when the request goes on."""
    await asyncio.sleep(fault.get("delay", 0))
    if "lines" in fault:
        return None
    action = fault.get("action")
    if action == "reset":
        return reset(request)
    if action == "hang":
        await asyncio.Event().wait()
    if action == "head_only_hang":
        return await head_only(request)
    if "status" in fault:
        body = fault.get("body", {"code": fault["status"], "message": "injected"})
        text = body if isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": "application/json", **fault.get("headers", {})}
        return web.Response(status=fault["status"], headers=headers, body=text.encode())
    return None


def reset(request):
    """Closes the connection with a TCP reset."""
    if request.transport:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    return web.Response()


async def head_only(request):
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


def cut_after(request, fault, response):
    """The work was done, but its answer never arrives."""
    if fault.get("action") == "cut" and isinstance(response, web.Response):
        request.transport.abort()
    return response


class RequestLog:
    """The last requests, as they came."""

    def __init__(self):
        self.entries = []

    async def add(self, request):
        body = await request.read() if is_text(request) else b""
        entry = {
            "method": request.method,
            "path": request.path_qs,
            "headers": dict(request.headers),
            "body": body.decode("utf-8", "replace")[:BODY_AT_MOST],
        }
        self.entries.append(entry)
        del self.entries[:-LOG_AT_MOST]


def is_text(request):
    """Whether the body can be read at once: uploads and streams of input are left to their handlers."""
    kind = request.content_type
    if not request.can_read_body or kind.startswith("multipart/"):
        return False
    if kind.startswith("application/connect"):
        return request.content_length is not None
    return kind != "application/octet-stream" or request.path != "/files"
