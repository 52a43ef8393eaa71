"""Runs cells one after another in the interpreter that the service keeps for a session."""

import ast
import asyncio
import builtins
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

from _interpreterd import display, errors, figures
from _interpreterd.alarm import Alarm, CellEnded
from _interpreterd.captured import Captured
from _interpreterd.place import Place, readable, remove
from _interpreterd.streams import Streams

SPARES = 16
TASK_ENDS = 0.5  # seconds that the task of a cell has to end once the cell is over


class Kernel:
    """What lives from cell to cell."""

    def __init__(self, told):
        self.folder = told["folder"] or os.getcwd()
        self.place = Place(os.path.join(self.folder, "files"), os.path.join(self.folder, ".interpreterd"))
        self.place.prepare()
        self.streams = Streams(self.place)
        self.main = types.ModuleType("__main__")
        self.main.__dict__.update(__builtins__=builtins, display=display.display)
        self.loop, self.given_up = None, []
        self.spares = spares()
        self.count = 0
        self.running = None
        self.pid = os.getpid()
        os.environ.update(told["env"])
        figures.install(os.environ)
        display.teach_ipython()
        os.chdir(self.place.files)
        if "" not in sys.path:
            sys.path.insert(0, "")

    def here(self, packages):
        return {
            "folder": self.folder,
            "files_dir": alias(self.place.files),
            "python": sys.executable or "python3",
            "version": platform.python_version(),
            "packages": dict(versions(packages)),
        }

    def begin(self, told):
        """Gets ready for a cell, and gives its streams. An OSError says that it cannot be begun."""
        for spare in self.spares:
            os.close(spare)
        self.spares = []
        self.place.prepare()
        remove(self.place.beside("stop-any"))
        captured = Captured(self.place, told["id"], told["output_bytes"])
        try:
            self.streams.lend(told["id"], captured, told["stdin"])
        except OSError:
            captured.close()
            raise
        finally:
            self.spares = spares()
        return captured

    def run(self, told, captured):
        """Runs a cell and gives what came of it."""
        mark, number = told["id"], self.count + 1
        stop_files = [self.place.beside(f"stop-{name}") for name in (mark, "any")]
        alarm = Alarm(stop_files, captured, told["seconds"])
        display.Current.shown = shown = display.Shown()
        self.running, self.count = mark, number
        lent, began, outcome = lend(told["env"]), time.monotonic(), None
        try:
            outcome = self.outcome(told["code"], f"<cell {number}>", alarm)
        finally:
            if os.getpid() != self.pid:
                self.leave(outcome)
            took = time.monotonic() - began
            display.Current.shown, self.running = None, None
            try:
                self.streams.take_back()
            finally:
                lend(lent)
                out, err = captured.bare()
                captured.close()
                remove(stop_files[0])
        outcome.update(
            count=number,
            ms=took * 1000,
            stdout=out,
            stderr=err,
            late=readable(self.streams.take_late()),
            outputs=shown.outputs,
            cut=shown.cut,
            reason=alarm.reason,
            **self.place.listing(),
        )
        return outcome

    def leave(self, outcome):
        """A child of os.fork() that ran off the end of the cell ends as a program does."""
        if outcome is not None and outcome["error"] and outcome["error"]["name"] != "SystemExit":
            self.streams.err.write(outcome["error"]["traceback"] + "\n")
        self.streams.flush()
        os._exit(1 if outcome is None else outcome["exit_code"])

    def outcome(self, code, name, alarm):
        outer = sys.modules.get("__main__")
        sys.modules["__main__"] = self.main
        try:
            with alarm:
                value = self.value(code, name)
                if value is not None:
                    self.main.__dict__["_"] = value
                    display.Current.shown.add(*display.bundle(value), main=True)
                figures.show_left_open()
            return {"exit_code": 0, "error": None}
        except SystemExit as error:
            return errors.of_exit(error)
        except (KeyboardInterrupt, CellEnded) as error:
            return {"exit_code": 130, "error": errors.told(error, name)}
        except BaseException as error:
            return {"exit_code": 1, "error": errors.told(error, name)}
        finally:
            sys.modules["__main__"] = outer

    def value(self, code, name):
        """Runs it, and gives the value of its last expression."""
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        parts = [compile_part(tree, name, "exec")]
        if last is not None:
            parts.append(compile_part(ast.Expression(last.value), name, "eval"))
        if any(part.co_flags & inspect.CO_COROUTINE for part in parts):
            value = self.awaited(parts)
        else:
            for part in parts:
                value = eval(part, self.main.__dict__)
        return None if last is None or code.rstrip().endswith(";") else value

    def awaited(self, parts):
        """All of a cell that awaits runs in one task, so that it has its loop from the first line on."""

        async def whole():
            value = None
            for part in parts:
                value = eval(part, self.main.__dict__)
                if part.co_flags & inspect.CO_COROUTINE:
                    value = await value
            return value

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        earlier = asyncio.all_tasks(self.loop)
        task = self.loop.create_task(whole())
        try:
            return self.loop.run_until_complete(task)
        except (KeyboardInterrupt, CellEnded):
            self.end_tasks(asyncio.all_tasks(self.loop) - earlier)
            raise

    def end_tasks(self, tasks):
        """What a cell awaited must not go on in the next one. A loop that does not let go is given up."""
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=TASK_ENDS))
        except BaseException:  # another strike
            pass
        if not all(task.done() for task in tasks):
            self.given_up.append(self.loop)
            self.loop = None


class Aside:
    """The interpreter's own event loop, out of the way of programs that run one."""

    def __enter__(self):
        self.outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)

    def __exit__(self, *_):
        asyncio._set_running_loop(self.outer)


def spares():
    """Descriptors for the begin of the next cell: a program may use up all that it can have."""
    held = []
    try:
        while len(held) < SPARES:
            held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        pass
    return held


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


def alias(files):
    """The short name of the files folder, where this system lets us make one."""
    try:
        os.symlink(files, "/files")
    except OSError:
        pass
    return "/files" if os.path.realpath("/files") == os.path.realpath(files) else files


def versions(packages):
    for name in packages:
        try:
            yield name, importlib.metadata.version(name)
        except Exception:
            pass


def shorten(outcome):
    """What of an outcome needs no disk."""
    for name in ("stdout", "stderr"):
        outcome[name].update(head=outcome[name]["head"][:16_384], tail="")
    if outcome["error"]:
        outcome["error"]["traceback"] = outcome["error"]["traceback"][:16_384]
    outcome.update(outputs=[], cut=True, late="", files=None)
    return outcome


class Current:
    """The kernel of this interpreter, once it was set up."""

    kernel = None


def answer(told):
    """What the service asks of the interpreter: one line, which bears its mark."""
    if told["do"] == "set_up":
        Current.kernel = None
        Current.kernel = Kernel(told)
        return Current.kernel.place.tell(told["mark"], Current.kernel.here(told["packages"]))
    kernel, mark = Current.kernel, told["mark"]
    if kernel is None:
        return mark + '{"absent":true}'
    if told["do"] == "probe":
        importlib.invalidate_caches()  # packages may have come since it began
        remove(kernel.place.beside("stop-any"))
        return kernel.place.tell(mark, {"running": kernel.running})
    with Aside():
        try:
            captured = kernel.begin(told)
        except OSError as error:
            return mark + json.dumps({"refused": "full" if error.errno in (28, 122) else "held_back"})
        outcome = kernel.run(told, captured)
    try:
        return kernel.place.tell(mark, outcome)
    except OSError:  # the disk is full
        return kernel.place.tell(mark, shorten(outcome))
