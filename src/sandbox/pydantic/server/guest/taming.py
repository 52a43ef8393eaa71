"""Puts ordinary errors in the place of what would end or block the interpreter."""

import os
import signal
import sys
import time
import types

from _pyodide._importhook import jsfinder
from pyodide import webloop

SLICE = 0.05  # seconds
NOT_SUPPORTED = 138


def tame():
    """Libraries ask for these names in the genuine modules, so they are changed there."""
    system, clock = sys.modules["os"], sys.modules["time"]
    system.system = system.popen = unsupported
    system._exit, system.abort = leave, abort
    sys.modules["socket"].socket.listen = not_listening
    sys.modules["builtins"].exit = sys.modules["builtins"].quit = leave
    clock.sleep = sleep
    system.kill = lambda pid, number: strike(number) if pid in (0, os.getpid()) else unsupported()
    sys.modules["signal"].raise_signal = strike


def unsupported(*_, **__):
    raise OSError(NOT_SUPPORTED, "processes are not supported in this sandbox")


def not_listening(*_):
    """Emscripten would ask for a module of JavaScript that is not there, and end the interpreter."""
    raise OSError(NOT_SUPPORTED, "nothing can be listened to in this sandbox")


def leave(code=None):
    raise SystemExit(code)


def abort():
    raise SystemExit(128 + signal.SIGABRT)


def strike(number):
    """A signal that nobody handles ends the cell, as it would end a program."""
    if callable(signal.getsignal(number)):
        signal.raise_signal(number)
    elif signal.getsignal(number) != signal.SIG_IGN:
        raise SystemExit(128 + number)


wait = time.sleep


def sleep(seconds, /):
    """In slices: between two of them an interrupt is seen."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        wait(min(left, SLICE))


def hide_javascript():
    """A second wall only: the first is Deno's permissions, and V8 that makes no code from strings.

    asyncio.run and the event loop import a few names from here for ever, so stubs take the place of the real ones.
    """
    api, top = types.ModuleType("pyodide_js._api"), types.ModuleType("pyodide_js")
    api.config = types.SimpleNamespace(enableRunUntilComplete=True)
    api.scheduleCallback = webloop.scheduleCallback
    top._api = api
    sys.modules["pyodide_js"], sys.modules["pyodide_js._api"] = top, api
    jsfinder.jsproxies.pop("pyodide_js", None)


def reseed():
    """A snapshot holds the state of random: without this all sessions would draw the same numbers.

    It holds the seed of hashes too, which cannot be changed: sets of strings have one order in all sessions.
    """
    for name, size in (("random", 32), ("numpy.random", 4)):
        module = sys.modules.get(name)
        if module is not None:
            module.seed(int.from_bytes(os.urandom(size), "little"))
