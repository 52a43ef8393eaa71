"""The control plane: creates, finds, pauses and kills sandboxes."""

import asyncio
import hashlib
import json
import re
import time

from aiohttp import web

from . import listing, validate
from .sandbox import Sandbox, now
from .validate import Invalid, check

SANDBOX_PATH = re.compile(r"^/(?:v2/)?sandboxes/([^/]+)(?:/|$)")
WRONG_KEY = (
    "Invalid API key, please visit https://e2b.dev/docs/api-key for more information.\n"
    "Cannot get the team for the given API key"
)
TIMEOUT_OF_V1 = 15
MIN_REFRESH, MAX_REFRESH = 15, 3600


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status, message, error_code=None, headers=None):
        super().__init__(message)
        self.status, self.error_code, self.headers = status, error_code, headers

    def answer(self):
        body = {"code": self.status, "message": str(self)}
        if self.error_code:
            body["error_code"] = self.error_code
        return web.json_response(body, status=self.status, headers=self.headers)


class Control:
    """Answers what a client of api.{domain} asks."""

    def __init__(self, cloud):
        self.cloud, self.options = cloud, cloud.options
        self.forget()
        self.routes = [
            ("POST", r"/sandboxes", self.create_v1),
            ("POST", r"/v2/sandboxes", self.create_v2),
            ("GET", r"/sandboxes", self.list_v1),
            ("GET", r"/v2/sandboxes", self.list_v2),
            ("GET", r"/sandboxes/[^/]+", self.detail),
            ("DELETE", r"/sandboxes/[^/]+", self.kill),
            ("POST", r"/sandboxes/[^/]+/timeout", self.set_timeout),
            ("POST", r"/sandboxes/[^/]+/refreshes", self.refresh),
            ("POST", r"/sandboxes/[^/]+/pause", self.pause),
            ("POST", r"/sandboxes/[^/]+/resume", self.resume),
            ("POST", r"/sandboxes/[^/]+/connect", self.connect_v1),
            ("POST", r"/v2/sandboxes/[^/]+/connect", self.connect_v2),
            ("PUT", r"/sandboxes/[^/]+/network", self.set_network),
            ("GET", r"/sandboxes/[^/]+/metrics", self.metrics),
            ("GET", r"/v2/sandboxes/[^/]+/logs", self.logs),
        ]

    def forget(self):
        self.idempotent = {}  # by team and key: the request and its sandbox
        self.creates = {}  # by team: when it created last

    def sandbox_named(self, request):
        found = SANDBOX_PATH.match(request.path)
        return found[1].split("-")[0] if found else None

    async def handle(self, request):
        if request.path == "/health":
            return web.Response(text="Health check successful")
        try:
            team = self.team(request)
            route = self.route(request)
            if name := self.sandbox_named(request):
                return await route(request, self.sandbox(name, team))
            return await route(request, team)
        except Invalid as error:
            return Refusal(400, str(error)).answer()
        except Refusal as refusal:
            return refusal.answer()

    def team(self, request):
        key = request.headers.get("X-API-Key")
        if not key:
            raise Refusal(401, "authentication failed")
        if self.options.keys and key not in self.options.keys:
            raise Refusal(401, WRONG_KEY)
        return self.options.keys.get(key, key)

    def route(self, request):
        paths = [route for route in self.routes if re.fullmatch(route[1], request.path)]
        if not paths or (request.path.startswith("/v2/") and not self.options.v2):
            raise Refusal(404, "validation error: no matching operation was found")
        for method, _, handler in paths:
            if method == request.method:
                return handler
        raise Refusal(405, "validation error: method not allowed")

    def sandbox(self, name, team):
        sandbox = self.cloud.sandboxes.get(name)
        if sandbox is None or sandbox.team != team:
            raise not_found(name)
        return sandbox

    async def create_v1(self, request, team):
        body = await body_of(request)
        check(body, validate.CREATE, ["templateID"])
        default = min(TIMEOUT_OF_V1, self.options.default_timeout)
        return await self.create(request, team, body, bool(body.get("secure")), default)

    async def create_v2(self, request, team):
        body = await body_of(request)
        check(body, validate.CREATE, ["templateID"])
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return await self.create(request, team, body, True, self.options.default_timeout)
        validate.check_idempotency_key(key)
        digest = hashlib.sha256(await request.read()).hexdigest()
        if (team, key) not in self.idempotent:
            return await self.create(request, team, body, True, self.options.default_timeout, (team, key, digest))
        self.limit_rate(team)
        before, sandbox = self.idempotent[team, key]
        if before != digest:
            message = "Idempotency key was used with a different request"
            raise Refusal(409, message, "idempotency_request_mismatch")
        if sandbox.state == "starting":
            message = "A request with this idempotency key is in progress"
            raise Refusal(409, message, "idempotency_in_progress", {"Retry-After": "1"})
        return web.json_response(sandbox.created(), status=201)

    async def create(self, request, team, body, secure, default_timeout, idempotency=None):
        self.limit_rate(team)
        validate.check_create(body, self.options, secure)
        self.check_template(body["templateID"])
        self.limit_number(team)
        if body.get("timeout") is None:
            body["timeout"] = default_timeout
        sandbox = Sandbox(self.cloud, team, request.headers["X-API-Key"], body, secure)
        self.cloud.sandboxes[sandbox.id] = sandbox
        if idempotency:
            *key, digest = idempotency
            self.idempotent[tuple(key)] = (digest, sandbox)
        try:
            # the sandbox comes to be also when the client does not wait for it
            await asyncio.shield(asyncio.create_task(sandbox.boot()))
        except (OSError, RuntimeError) as error:
            await sandbox.kill()
            if idempotency:
                del self.idempotent[tuple(key)]
            raise Refusal(500, f"Failed to place sandbox: {error}", "sandbox_create_failed") from error
        return web.json_response(sandbox.created(), status=201)

    def check_template(self, name):
        plain = name.split(":")[0].rsplit("/", 1)[-1]
        if plain not in self.options.templates:
            raise Refusal(404, f"template '{name}' not found")

    def limit_rate(self, team):
        rate = self.options.create_rate
        if not rate:
            return
        moment = time.monotonic()
        recent = [past for past in self.creates.get(team, []) if past > moment - 1]
        if len(recent) >= rate:
            limits = {"RateLimit-Limit": f"{rate:g}", "RateLimit-Remaining": "0", "RateLimit-Reset": "1"}
            raise Refusal(429, "Rate limit exceeded", headers={**limits, "Retry-After": "1"})
        self.creates[team] = [*recent, moment]

    def limit_number(self, team):
        running = [one for one in self.cloud.sandboxes.values() if one.team == team and one.state != "paused"]
        most = self.options.max_sandboxes
        if len(running) >= most:
            message = f"you have reached the maximum number of concurrent E2B sandboxes ({most})."
            hint = "If you need more, please contact us at 'https://e2b.dev/docs/getting-help'"
            raise Refusal(429, f"{message} {hint}")

    async def list_v1(self, request, team):
        found = listing.find(self.cloud, team, request, {"running"})
        return web.json_response([sandbox.listed() for sandbox in found])

    async def list_v2(self, request, team):
        return listing.page(self.cloud, team, request)

    async def detail(self, _, sandbox):
        return web.json_response(sandbox.detail())

    async def kill(self, _, sandbox):
        await sandbox.kill()
        return web.Response(status=204)

    async def set_timeout(self, request, sandbox):
        body = check(await body_of(request), validate.TIMEOUT, ["timeout"])
        if sandbox.state != "running":
            raise not_found(sandbox.id)
        if body["timeout"] < 0:
            raise Invalid('validation error: "/timeout": number must be at least 0')
        if now() >= sandbox.latest_end():
            raise Refusal(400, "Max instance length exceeded")
        sandbox.end_in(body["timeout"])
        return web.Response(status=204)

    async def refresh(self, request, sandbox):
        body = check(await body_of(request), validate.REFRESH)
        seconds = body.get("duration") or MIN_REFRESH
        if not 0 <= seconds <= MAX_REFRESH:
            raise Invalid(f'validation error: "/duration": number must be at most {MAX_REFRESH}')
        if sandbox.state != "running":
            raise not_found(sandbox.id)
        sandbox.extend(max(seconds, MIN_REFRESH))
        return web.Response(status=204)

    async def pause(self, request, sandbox):
        body = check(await body_of(request), validate.PAUSE)
        if sandbox.state != "running":
            raise Refusal(409, f"Error pausing sandbox - sandbox '{sandbox.id}' is already paused")
        await sandbox.pause(memory=body.get("memory") is not False)
        return web.Response(status=204)

    async def resume(self, request, sandbox):
        body = check(await body_of(request), validate.CONNECT)
        if sandbox.state != "paused":
            raise Refusal(409, f'Sandbox "{sandbox.id}" is already running')
        return await self.wake(sandbox, body.get("timeout") or TIMEOUT_OF_V1)

    async def connect_v1(self, request, sandbox):
        body = check(await body_of(request), validate.CONNECT, ["timeout"])
        return await self.connect(body, sandbox)

    async def connect_v2(self, request, sandbox):
        body = check(await body_of(request), validate.CONNECT)
        return await self.connect(body, sandbox)

    async def connect(self, body, sandbox):
        seconds = 300 if body.get("timeout") is None else body["timeout"]
        if seconds < 0:
            raise Invalid("Timeout must be greater than 0")
        validate.check_longest(seconds, self.options)
        if sandbox.state == "starting":
            raise Refusal(409, "Sandbox is starting", "sandbox_start_in_flight")
        if sandbox.state == "paused":
            return await self.wake(sandbox, seconds)
        sandbox.extend(seconds)
        return web.json_response(sandbox.created())

    async def wake(self, sandbox, seconds):
        self.limit_number(sandbox.team)
        await sandbox.resume(seconds)
        return web.json_response(sandbox.created(), status=201)

    async def set_network(self, request, sandbox):
        body = check(await body_of(request), validate.NETWORK)
        validate.check_rules(body)
        if sandbox.state != "running":
            raise Refusal(409, "Sandbox is not running")
        if "allow_internet_access" in body:
            sandbox.internet = body.pop("allow_internet_access")
        kept = {name: sandbox.network[name] for name in ("allowPublicTraffic",) if name in sandbox.network}
        sandbox.network = {**kept, **body}
        return web.Response(status=204)

    async def metrics(self, _, sandbox):
        size = {"memUsed": 100 << 20, "memTotal": 2048 << 20, "memCache": 0, "diskUsed": 1 << 30, "diskTotal": 10 << 30}
        stamp = {"timestamp": sandbox.listed()["startedAt"], "timestampUnix": int(sandbox.started.timestamp())}
        return web.json_response([{**stamp, "cpuCount": 2, "cpuUsedPct": 1.5, **size}])

    async def logs(self, *_):
        return web.json_response({"logs": []})


def not_found(name):
    return Refusal(404, f"Sandbox \"{name}\" doesn't exist or you don't have access to it")


async def body_of(request):
    raw = await request.read()
    if not raw:
        return {}
    if request.content_type != "application/json":
        raise Invalid(f"validation error: unexpected Content-Type {request.headers.get('Content-Type')!r}")
    try:
        return json.loads(raw)
    except ValueError as error:
        raise Invalid(f"Error when parsing request: {error}") from error
