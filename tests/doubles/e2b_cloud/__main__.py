"""Starts the double, and ends it with its standard input or a signal."""

import asyncio
import contextlib
import os
import signal
import ssl
import sys
import threading

from aiohttp import web

from . import options
from .cloud import Cloud


async def main():
    settings = options.parse()
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    threading.Thread(target=wait_for_end_of_input, args=(loop, stop), daemon=True).start()
    cloud = Cloud(settings)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", cloud.handle)
    app.on_response_prepare.append(leave_out_content_type)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", settings.port, ssl_context=tls(settings))
    await site.start()
    port = runner.addresses[0][1]
    base = f"https://localhost:{port}" if settings.tls else f"http://127.0.0.1:{port}"
    reaper = asyncio.create_task(cloud.reap())
    print(f"e2b double on {base}", flush=True)
    await stop.wait()
    reaper.cancel()
    await cloud.close()
    await runner.cleanup()


def tls(settings):
    if not settings.tls:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*settings.tls)
    return context


async def leave_out_content_type(_, response):
    """The code interpreter's streams have none."""
    if getattr(response, "no_content_type", False):
        del response.headers["Content-Type"]


def wait_for_end_of_input(loop, stop):
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    loop.call_soon_threadsafe(stop.set)


if __name__ == "__main__":
    if sys.version_info < (3, 12):  # no thread for each child
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    asyncio.run(main())
