"""Waits for what is awaitable, from code that is not."""

import asyncio
import sys

from pyodide import ffi, webloop

wait = ffi.run_sync
under_way = set()  # tasks, in whichever event loop


def finished(awaitable):
    """Gives its result or raises its error, which must not pass JavaScript: a SystemExit there ends the worker."""
    came = {}

    async def whole():
        try:
            came["value"] = await awaitable
        except BaseException as error:
            came["error"] = error

    task = asyncio.get_event_loop().create_task(whole())
    under_way.add(task)
    try:
        wait(task)
        if "error" in came:
            raise came["error"]
        return came["value"]
    finally:
        under_way.discard(task)
        came.clear()


def replace_waits():
    """asyncio.run, the event loop and programs wait by this function."""
    webloop.run_sync = ffi.run_sync = finished
    sys.modules["pyodide.ffi"].run_sync = finished
    # it would refuse, as the event loop always runs here
    asyncio.Runner.run = lambda runner, awaitable, **_: finished(awaitable)
