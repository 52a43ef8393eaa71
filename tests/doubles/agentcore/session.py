"""One session: its folder, its kernel, its tasks, its end."""

import asyncio
import contextlib
import shutil

from .errors import ServiceError
from .files import Folder
from .guest import kill_inhabitants
from .identifiers import timestamp, ulid
from .kernel import Kernel

READY, TERMINATED = "READY", "TERMINATED"


class Session:
    """What StartCodeInterpreterSession makes; it ends by itself when its time is over, whatever it does then."""

    def __init__(self, identifier, name, seconds, guest, options):
        self.id, self.identifier, self.name, self.seconds = ulid(), identifier, name, seconds
        self.guest, self.options = guest, options
        self.status, self.created = READY, timestamp()
        self.updated = self.created
        self.home = guest.make_home(self.id)
        self.folder = Folder(guest, self.home)
        self.kernel = Kernel(guest, self.home, options.kernel, options.dead_kernel == "broken")
        self.tasks = {}
        self.calls = 0  # that are at work
        self.ending = None
        self.turn = asyncio.Lock()
        self.expiry = asyncio.get_running_loop().call_later(seconds, self.terminate)

    @property
    def ready(self):
        return self.status == READY

    @contextlib.asynccontextmanager
    async def call(self):
        """Around the work of one call, as the option --calls says."""
        async with self.turn if self.options.calls == "queue" else contextlib.nullcontext():
            self.check_ready()
            try:
                yield
            except Exception:
                if self.ready:
                    raise
        if not self.ready:  # nobody knows what the service says of work that it cut short
            raise ServiceError(500, "The session was terminated during the call")

    def check_ready(self):
        if not self.ready:
            raise ServiceError(404, f"Code interpreter session {self.id} is not active")

    def check_free(self):
        if self.options.calls == "conflict" and self.calls:
            raise ServiceError(409, f"Session {self.id} is busy with another call")

    def terminate(self):
        """Ends the session and all its processes; its files are gone too."""
        if not self.ready:
            return
        self.status, self.updated = TERMINATED, timestamp()
        self.expiry.cancel()
        kill_inhabitants(self.home)
        shutil.rmtree(self.home, ignore_errors=True)
        self.ending = asyncio.create_task(self.end())

    async def end(self):
        """Until the processes that are ours to wait for are gone."""
        await self.kernel.end()
        for task in self.tasks.values():
            await task.process.wait()

    def started(self):
        return {"codeInterpreterIdentifier": self.identifier, "sessionId": self.id, "createdAt": self.created}

    def stopped(self):
        return {"codeInterpreterIdentifier": self.identifier, "sessionId": self.id, "lastUpdatedAt": self.updated}

    def detail(self):
        return {**self.started(), **self.named(), "sessionTimeoutSeconds": self.seconds, "status": self.status}

    def summary(self):
        return {**self.started(), **self.named(), "status": self.status, "lastUpdatedAt": self.updated}

    def named(self):
        return {} if self.name is None else {"name": self.name}
