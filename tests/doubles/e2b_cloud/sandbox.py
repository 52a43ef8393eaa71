"""One sandbox: its box, contexts, processes and tokens, and how long it lives."""

import asyncio
import contextlib
import datetime
import hmac
import secrets
import signal
import string

from .context import Context

ALPHABET = string.ascii_lowercase + string.digits
UNAUTHORIZED = "unauthorized access, please provide a valid access token or method signing if supported"


def now():
    return datetime.datetime.now(datetime.UTC)


def timestamp(moment):
    return moment.isoformat().replace("+00:00", "Z")


class Sandbox:
    """What a team has from its create to its kill."""

    def __init__(self, cloud, team, key, body, secure):
        self.cloud, self.team, self.key = cloud, team, key
        self.id = "i" + "".join(secrets.choice(ALPHABET) for _ in range(20))
        self.template = body["templateID"]
        self.metadata, self.envs = body.get("metadata") or {}, body.get("envVars") or {}
        self.auto_pause = bool(body.get("autoPause"))
        self.auto_pause_memory = body.get("autoPauseMemory") is not False
        self.auto_resume = bool((body.get("autoResume") or {}).get("enabled"))
        self.internet, self.network = body.get("allow_internet_access"), body.get("network") or {}
        self.volumes = body.get("volumeMounts")
        self.token = "ea_" + secrets.token_hex(20) if secure else None
        closed = self.network.get("allowPublicTraffic") is False
        self.traffic_token = "tt_" + secrets.token_hex(20) if closed else None
        self.started, self.state, self.alive = now(), "starting", True
        self.ends = self.started + datetime.timedelta(seconds=body["timeout"])
        self.contexts, self.default, self.processes, self.watchers = {}, None, {}, {}
        self.memory_kept = True
        self.connections = set()
        self.box = None

    async def boot(self):
        denied = self.internet is False or "0.0.0.0/0" in (self.network.get("denyOut") or [])
        allowed = self.network.get("allowOut")
        box = await self.cloud.boxes.make("none" if denied and not allowed else "shared")
        if not self.alive:
            await box.destroy()
            raise ConnectionError("the sandbox was killed while it started")
        self.box = box
        await self.start_contexts()
        self.state = "running"

    async def start_contexts(self):
        self.default = await self.add_context("python", "/home/user")
        # the template has a second one, whose kernel this double does not have
        script = Context(self, "javascript", "/home/user")
        self.contexts[script.id] = script

    async def add_context(self, language, cwd):
        context = Context(self, language, cwd)
        await context.start()
        self.contexts[context.id] = context
        return context

    def envs_for(self, token):
        """What envd answers the code interpreter, also when it refuses to."""
        if not self.admits(token):
            return {"code": 401, "message": UNAUTHORIZED}
        return {"E2B_SANDBOX": "true", **self.envs}

    def admits(self, token):
        return self.token is None or hmac.compare_digest((token or "").encode(), self.token.encode())

    def summary(self):
        return {
            "templateID": self.template,
            "alias": self.template,
            "sandboxID": self.id,
            "clientID": "double",
            "envdVersion": self.cloud.options.envd_version,
        }

    def created(self):
        answer = {**self.summary(), "domain": self.cloud.options.domain}
        if self.token:
            answer["envdAccessToken"] = self.token
        if self.traffic_token:
            answer["trafficAccessToken"] = self.traffic_token
        return answer

    def listed(self):
        size = {"cpuCount": 2, "memoryMB": 2048, "diskSizeMB": 10240}
        times = {"startedAt": timestamp(self.started), "endAt": timestamp(self.ends)}
        answer = {**self.summary(), **times, **size, "state": self.state, "metadata": self.metadata}
        return {**answer, "volumeMounts": self.volumes} if self.volumes else answer

    def detail(self):
        life = {"autoResume": self.auto_resume, "onTimeout": "pause" if self.auto_pause else "kill"}
        answer = {**self.listed(), "domain": self.cloud.options.domain, "lifecycle": life}
        if self.internet is not None:
            answer["allowInternetAccess"] = self.internet
        if self.network:
            answer["network"] = self.network
        if self.token:
            answer["envdAccessToken"] = self.token
        return answer

    def latest_end(self):
        return self.started + datetime.timedelta(seconds=self.cloud.options.max_timeout)

    def end_in(self, seconds):
        """Sets the end, at most as late as the plan lets it."""
        self.ends = min(now() + datetime.timedelta(seconds=seconds), self.latest_end())

    def extend(self, seconds):
        """Sets the end, unless it is later already."""
        before = self.ends
        self.end_in(seconds)
        self.ends = max(before, self.ends)

    async def pause(self, memory=True):
        self.state = "paused"
        self.memory_kept = memory
        self.drop_connections()
        if memory:
            self.box.signal_all(signal.SIGSTOP)
            return
        self.stop_contexts()
        self.box.signal_all(signal.SIGKILL)

    async def resume(self, seconds):
        """Starts a new running period; without the memory, with new kernels."""
        self.state, self.started = "running", now()
        self.end_in(seconds)
        if self.memory_kept:
            self.box.signal_all(signal.SIGCONT)
        else:
            await self.start_contexts()

    def stop_contexts(self):
        for context in self.contexts.values():
            context.stop()
        self.contexts.clear()

    def drop_connections(self):
        for transport in list(self.connections):
            transport.abort()

    async def kill(self):
        if not self.alive:
            return
        self.alive = False
        self.cloud.sandboxes.pop(self.id, None)
        self.drop_connections()
        self.stop_contexts()
        for watcher in list(self.watchers.values()):
            watcher.close()
        if self.box:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(self.box.destroy())
