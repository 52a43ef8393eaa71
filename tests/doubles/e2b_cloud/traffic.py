"""The proxy in front of the sandboxes: finds the sandbox, checks its token, answers in its absence."""

import dataclasses
import hmac
import ipaddress
import re

from aiohttp import web

from . import envd, files, interpreter

ENVD, INTERPRETER = 49983, 49999
HOST = re.compile(r"^(\d+)-([^.]+)\.")
ID = re.compile(r"^[a-z0-9]+$")
CONTROL_PATH = re.compile(r"^/(v2/)?sandboxes(/|$)")
TIME_AFTER_RESUME = 300


@dataclasses.dataclass
class Target:
    """Where a request goes; empty where a header is missing."""

    sandbox_id: str
    port: str


def target(cloud, request):
    """The sandbox and port that a request is for; None is the control plane."""
    if found := HOST.match(request.host):
        return Target(found[2].split("-")[0], found[1])
    if not is_shared_host(request.host):
        return None
    name, port = request.headers.get("E2b-Sandbox-Id"), request.headers.get("E2b-Sandbox-Port")
    # older official clients send both on control-plane calls too
    if (name or port) and not (port == str(ENVD) and CONTROL_PATH.match(request.path)):
        return Target(name or "", port or "")
    if request.path == "/files" and "signature" in request.query:
        # a signed URL below the one URL that stands for all sandboxes names none: the signature tells
        signed = [one for one in cloud.sandboxes.values() if files.signature_problem(request, one) is None]
        for sandbox in signed or list(cloud.sandboxes.values())[:1]:
            return Target(sandbox.id, str(ENVD))
    return None


def is_shared_host(host):
    """Whether the proxy reads the routing headers: it does not for api.{domain}."""
    name = host.rsplit(":", 1)[0].strip("[]") if not host.endswith("]") else host.strip("[]")
    if name == "localhost" or name.startswith("sandbox."):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def handle(cloud, request, target):
    if not target.sandbox_id or not target.port:
        return web.Response(status=400, text="missing header\n")
    if not ID.match(target.sandbox_id):
        return web.Response(status=400, text="Invalid sandbox ID\n")
    if not target.port.isdigit() or int(target.port) > 65535:
        return web.Response(status=400, text="Invalid sandbox port\n")
    sandbox, port = cloud.sandboxes.get(target.sandbox_id), int(target.port)
    if sandbox and sandbox.state == "paused" and can_wake(sandbox, request, port):
        await sandbox.resume(TIME_AFTER_RESUME)
    if sandbox is None or sandbox.state != "running":
        return proxy_error(request, target, 502, "The sandbox was not found")
    if refusal := check_traffic_token(request, target, sandbox, port):
        return refusal
    transport = request.transport
    sandbox.connections.add(transport)
    try:
        return await dispatch(request, target, sandbox, port)
    finally:
        sandbox.connections.discard(transport)


async def dispatch(request, target, sandbox, port):
    if port == ENVD:
        return await envd.handle(request, sandbox)
    if port == INTERPRETER:
        return await interpreter.handle(request, sandbox)
    return proxy_error(request, target, 502, "The sandbox is running but port is not open", port=port)


def can_wake(sandbox, request, port):
    if not sandbox.auto_resume or not sandbox.memory_kept:
        return False
    return port != ENVD or sandbox.admits(request.headers.get("X-Access-Token"))


def check_traffic_token(request, target, sandbox, port):
    if sandbox.traffic_token is None or port == ENVD:
        return None
    sent = request.headers.get("E2B-Traffic-Access-Token")
    if sent and hmac.compare_digest(sent.encode(), sandbox.traffic_token.encode()):
        return None
    problem = "Provided token in header 'e2b-traffic-access-token' is invalid"
    if not sent:
        problem = "Token header 'e2b-traffic-access-token' is missing"
    return proxy_error(request, target, 403, f"Sandbox is secured with traffic access token. {problem}")


def proxy_error(request, target, status, message, **more):
    """JSON, except for browsers."""
    browser = "Mozilla" in request.headers.get("User-Agent", "")
    if browser and "application/json" not in request.headers.get("Accept", ""):
        page = f"<!DOCTYPE html><html><body><h1>{message}</h1></body></html>"
        return web.Response(status=status, text=page, content_type="text/html")
    body = {"sandboxId": target.sandbox_id, "message": message, "code": status, **more}
    return web.json_response(body, status=status)
