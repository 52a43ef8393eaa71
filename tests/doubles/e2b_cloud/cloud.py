"""All sandboxes, and the way of a request through the double."""

import asyncio
import contextlib
import traceback

from aiohttp import web

from . import backdoor, faults, traffic
from .box import Boxes
from .control import Control
from .sandbox import now

REAP_EVERY = 0.05  # seconds


class Cloud:
    """What one process of the double holds."""

    def __init__(self, options):
        self.options = options
        self.boxes = Boxes(options.python, options.plain)
        self.sandboxes = {}
        self.faults = faults.Faults()
        self.log = faults.RequestLog()
        self.control = Control(self)

    async def handle(self, request):
        if request.path.startswith("/_double/"):
            return await backdoor.handle(self, request)
        await self.log.add(request)
        try:
            return await self.answer(request)
        except web.HTTPException:
            raise
        except ConnectionError:
            return web.Response()  # nobody is there to read it
        except Exception as error:
            traceback.print_exc()
            return web.json_response({"code": 500, "message": f"double: {error!r}"}, status=500)

    async def answer(self, request):
        target = traffic.target(self, request)
        name = target.sandbox_id if target else self.control.sandbox_named(request)
        sandbox = self.sandboxes.get(name)
        key = request.headers.get("X-API-Key") or (sandbox and sandbox.key)
        fault = request["fault"] = self.faults.take(request, name, key)
        if fault and (answer := await faults.apply(request, fault)) is not None:
            return answer
        if target:
            return faults.cut_after(request, fault, await traffic.handle(self, request, target))
        return faults.cut_after(request, fault, await self.control.handle(request))

    async def reap(self):
        """Ends the running period of sandboxes whose time is over."""
        while True:
            await asyncio.sleep(REAP_EVERY)
            for sandbox in list(self.sandboxes.values()):
                if sandbox.state == "running" and now() > sandbox.ends:
                    if sandbox.auto_pause:
                        await sandbox.pause(memory=sandbox.auto_pause_memory)
                    else:
                        await sandbox.kill()

    async def reset(self):
        self.faults.orders.clear()
        self.log.entries.clear()
        self.control.forget()
        await asyncio.gather(*(sandbox.kill() for sandbox in list(self.sandboxes.values())))

    async def close(self):
        with contextlib.suppress(OSError):
            await self.reset()
