"""Port 49983: the daemon of a sandbox. Everything here runs as one user, whichever user is asked for."""

import re
import time

from aiohttp import web

from . import files, rpc
from .sandbox import UNAUTHORIZED

CALL = re.compile(r"^/(process\.Process|filesystem\.Filesystem)/(\w+)$")


async def handle(request, sandbox):
    if (request.method, request.path) == ("GET", "/health"):
        return web.Response(status=204)
    if request.path == "/files":
        return await files.handle(request, sandbox)
    if not sandbox.admits(request.headers.get("X-Access-Token")):
        return error(401, UNAUTHORIZED)
    if (request.method, request.path) == ("GET", "/envs"):
        return web.json_response({"E2B_SANDBOX": "true", **sandbox.envs})
    if (request.method, request.path) == ("GET", "/metrics"):
        return web.json_response({"ts": int(time.time()), "cpu_count": 2, "cpu_used_pct": 1.5})
    if (request.method, request.path) == ("POST", "/files/compose"):
        return await files.compose(request, sandbox)
    found = CALL.match(request.path)
    if not found:
        return web.Response(status=404, text="404 page not found\n")
    if request.method != "POST":
        return web.Response(status=405, headers={"Allow": "POST"})
    return await rpc.handle(request, sandbox, *found.groups())


def error(status, message):
    return web.json_response({"code": status, "message": message}, status=status)
