"""Starts the double, and ends it with its standard input or a signal."""

import asyncio
import contextlib
import os
import signal
import sys
import threading

from aiohttp import web

from . import options
from .guest import Guest
from .service import Service

BODY_AT_MOST = 1 << 30


async def main():
    settings = options.parse()
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    threading.Thread(target=wait_for_end_of_input, args=(loop, stop), daemon=True).start()
    with Guest(settings.python) as guest:
        await serve(Service(settings, guest), settings.port, stop)


async def serve(service, port, stop):
    app = web.Application(client_max_size=BODY_AT_MOST)
    app.router.add_route("*", "/{path:.*}", service.handle)
    # a client that goes away ends the waiting for the work, not the work: that is a task of its own
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(f"agentcore double on http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await stop.wait()
    await service.close()
    await runner.cleanup()


def wait_for_end_of_input(loop, stop):
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    loop.call_soon_threadsafe(stop.set)


if __name__ == "__main__":
    if sys.version_info < (3, 12):  # no thread for each child
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    asyncio.run(main())
