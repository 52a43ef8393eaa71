"""Runs cells one after another in the interpreter that a server keeps, and does what else is asked."""

import ast
import asyncio
import builtins
import contextvars
import errno
import importlib
import importlib.metadata
import inspect
import json
import linecache
import os
import platform
import sys
import time
import types

from _interpreterd import display, errors, figures, files, guard, place
from _interpreterd.streams import CELL, Streams

GIVEN = {"__name__": "__main__", "__builtins__": builtins, "display": display.display}
FULL = (errno.ENOSPC, errno.EDQUOT)
STOPPED = {"exit_code": 1, "error": None, "reason": "interrupted"}


class Kernel:
    """What lives from cell to cell."""

    def __init__(self, told):
        self.session = told["session"]
        place.prepare()
        if told["clear"]:
            place.clear(place.FILES)
            place.clear(place.ASIDE)
        self.needed = guard.Needed()
        self.depth = sys.getrecursionlimit()
        self.streams = Streams()
        guard.install(self.streams)
        self.main = types.ModuleType("__main__")
        self.context = contextvars.copy_context()
        self.count, self.task, self.found, self.stopped = 0, None, None, False
        self.environ = dict(os.environ)
        os.environ.pop("_", None)  # it tells a path of the server's machine
        os.environ.update(told["env"])
        figures.install(os.environ)
        display.teach_ipython()
        os.chdir(place.FILES)
        if "" not in sys.path:
            sys.path.insert(0, "")

    def here(self, packages):
        return {
            "files_dir": place.FILES,
            "version": platform.python_version(),
            "pyodide": getattr(sys.modules.get("pyodide"), "__version__", ""),
            "packages": dict(versions(packages)),
        }

    async def run(self, told):
        """Runs a cell and gives what came of it."""
        if self.task is not None:
            raise place.Refused("busy")
        self.count += 1
        display.Current.shown = shown = display.Shown()
        late = self.streams.lend(self.count, told["output_bytes"], told["stdin"])
        lent, began = lend(told["env"]), time.monotonic()
        try:
            outcome = await self.outcome(told["code"])
        finally:
            took = time.monotonic() - began
            self.task, display.Current.shown = None, None
            out, err = self.streams.take_back()
            lend(lent)
        return {
            **outcome,
            "count": self.count,
            "ms": took * 1000,
            "stdout": out,
            "stderr": err,
            "late": late,
            "outputs": shown.outputs,
            "cut": shown.cut,
            **place.listing(),
            "packages": [],
            "state_lost": False,
            "ended": None,
        }

    async def outcome(self, code):
        """All of a cell runs in one task, so that it can be stopped while it waits."""
        loop = asyncio.get_running_loop()
        guard.hold_loop(loop)
        sys.modules["__main__"] = self.main
        for name, value in GIVEN.items():  # programs clear all names to begin anew
            self.main.__dict__.setdefault(name, value)
        self.found, self.stopped = None, False
        self.context.run(CELL.set, self.count)
        self.task = loop.create_task(self.cell(code, f"<cell {self.count}>"), context=self.context)
        while not self.task.done():
            try:
                await asyncio.wait([self.task])
            except asyncio.CancelledError:  # a program cancels all tasks that it finds
                pass
        # not what the task gives: one that is told to stop as it ends forgets that
        return {"reason": None, **(self.found or STOPPED)}

    async def cell(self, code, name):
        """Nothing that is raised may get to the loop."""
        try:
            self.found = await self.found_of(code, name)
        finally:
            self.put_right()

    async def found_of(self, code, name):
        try:
            value = await self.value(code, name)
            if value is not None:
                self.main.__dict__["_"] = value
                display.Current.shown.add(*display.bundle(value), main=True)
            figures.show_left_open()
            return {"exit_code": 0, "error": None}
        except SystemExit as error:
            return errors.of_exit(error)
        except KeyboardInterrupt as error:
            return {"exit_code": 130, "error": errors.told(error, name)}
        except BaseException as error:
            if self.stopped and isinstance(error, asyncio.CancelledError):
                return STOPPED
            return {"exit_code": 1, "error": errors.told(error, name)}

    async def value(self, code, name):
        """Runs it, and gives the value of its last expression."""
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        parts = [compile_part(tree, name, "exec")]
        if last is not None:
            parts.append(compile_part(ast.Expression(last.value), name, "eval"))
        for part in parts:
            value = eval(part, self.main.__dict__)
            if part.co_flags & inspect.CO_COROUTINE:
                value = await value
        return None if last is None or code.rstrip().endswith(";") else value

    def stop(self):
        """Stops a cell that waits; one that computes does not let us be asked."""
        if self.task is None:
            return {"stopped": False}
        self.stopped = True
        for task in asyncio.all_tasks():
            if task.get_context().get(CELL) == self.count:  # what asyncio.run() waits for is one of its own
                task.cancel()
        return {"stopped": True}

    def leave(self):
        """Another session takes its place, in an interpreter that several of them reach."""
        for task in asyncio.all_tasks():
            if task.get_context().get(CELL) is not None:
                task.cancel()
        os.environ.clear()
        os.environ.update(self.environ)

    def put_right(self):
        """What the server and ours need, whatever a program has done to it."""
        self.needed.restore()
        if sys.getrecursionlimit() < self.depth:
            sys.setrecursionlimit(self.depth)
        sys.modules["__main__"] = self.main


def compile_part(tree, name, mode):
    return compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def lend(changes):
    """Changes the environment (None removes) and gives the changes that undo that."""
    undo = {name: os.environ.get(name) for name in changes}
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return undo


def versions(packages):
    for name in packages:
        try:
            yield name, importlib.metadata.version(name)
        except Exception:
            pass


class Current:
    """The kernel of this interpreter, once it was set up."""

    kernel = None


def leave():
    if Current.kernel is not None:
        Current.kernel.leave()
        Current.kernel = None


async def answer(text):
    """What is asked, and what came of it: JSON both."""
    try:
        found = await done(json.loads(text))
    except place.Refused as error:
        found = {"refused": str(error)}
    except MemoryError:
        found = {"refused": "full"}
    except OSError as error:
        found = {"refused": "full" if error.errno in FULL else "held_back"}
    except BaseException as error:
        found = {"broken": errors.told(error, "")}
    # its XML would change this name, as it is a tag there
    return json.dumps(found, separators=(",", ":")).replace("return_value", "return\\u005fvalue")


async def done(told):
    if told["do"] == "set_up":
        Current.kernel = Kernel(told)
        return Current.kernel.here(told["packages"])
    kernel = Current.kernel
    if kernel is None or kernel.session != told["session"]:
        return {"absent": True, "other": kernel is not None}
    if told["do"] == "run":
        place.prepare()
        return await kernel.run(told)
    if told["do"] == "stop":
        return kernel.stop()
    if told["do"] == "probe":
        importlib.invalidate_caches()  # packages may have come since it began
        return {"running": kernel.task is not None, "count": kernel.count}
    place.prepare()
    return files.WORK[told["do"]](told)
