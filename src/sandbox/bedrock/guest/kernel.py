"""Runs cells one after another in the interpreter that the service keeps for a session."""

import ast
import asyncio
import importlib
import importlib.metadata
import inspect
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


class Kernel:
    """What lives from cell to cell."""

    def __init__(self, told):
        self.folder = os.getcwd()
        self.place = Place(os.path.join(self.folder, "files"), os.path.join(self.folder, ".interpreterd"))
        self.place.prepare()
        remove(os.path.join(self.place.aside, "stop-any"))  # it was meant for the kernel before
        self.streams = Streams()
        self.main = types.ModuleType("__main__")
        self.main.__dict__.update(__builtins__=__builtins__, display=display.display)
        self.loop = None
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

    def run(self, told):
        """Runs a cell and gives what came of it."""
        self.place.prepare()
        mark, number = told["id"], self.count + 1
        captured = Captured(self.place.aside, mark, told["output_bytes"])
        stop_files = [os.path.join(self.place.aside, f"stop-{name}") for name in (mark, "any")]
        alarm = Alarm(stop_files, captured, told["seconds"])
        display.Current.shown = shown = display.Shown()
        self.running, self.count = mark, number
        lent, began = lend(told["env"]), time.monotonic()
        self.streams.lend(captured, told["stdin"])
        try:
            outcome = self.outcome(told["code"], f"<cell {number}>", alarm)
        finally:
            if os.getpid() != self.pid:
                os._exit(0)  # a child of os.fork() that ran off the end of the cell
            took = time.monotonic() - began
            self.streams.flush()
            display.Current.shown = None
            self.streams.take_back()
            lend(lent)
            out, err = captured.take()
            captured.close()
            remove(stop_files[0])
            self.running = None
        outcome.update(
            count=number,
            ms=took * 1000,
            stdout=out,
            stderr=err,
            late=readable(self.streams.late.take()),
            outputs=shown.outputs,
            cut=shown.cut,
            reason=alarm.reason,
            **self.place.listing(),
        )
        return outcome

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
        lines = code.splitlines(keepends=True)
        linecache.cache[name] = (len(code), None, lines, name)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        whole = [compile_part(tree, name, "exec")]
        if last is not None:
            whole.append(compile_part(ast.Expression(last.value), name, "eval"))
        value = None
        for part in whole:
            value = self.evaluate(part)
        return None if last is None or code.rstrip().endswith(";") else value

    def evaluate(self, part):
        if not part.co_flags & inspect.CO_COROUTINE:
            return eval(part, self.main.__dict__)
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(eval(part, self.main.__dict__))


class Aside:
    """The interpreter's own event loop, out of the way of programs that run one."""

    def __enter__(self):
        self.outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)

    def __exit__(self, *_):
        asyncio._set_running_loop(self.outer)


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


def answer(told):
    """What the service asks of the interpreter: one line, which bears its mark."""
    kernel = getattr(sys.modules["_interpreterd"], "kernel", None)
    if told["do"] == "set_up":
        kernel = sys.modules["_interpreterd"].kernel = Kernel(told)
        return kernel.place.tell(told["mark"], kernel.here(told["packages"]))
    if kernel is None:
        return told["mark"] + '{"absent":true}'
    if told["do"] == "probe":
        importlib.invalidate_caches()  # packages may have come since it began
        remove(os.path.join(kernel.place.aside, "stop-any"))
        return kernel.place.tell(told["mark"], {"running": kernel.running})
    with Aside():
        outcome = kernel.run(told)
    try:
        return kernel.place.tell(told["mark"], outcome)
    except OSError:  # the disk is full
        return kernel.place.tell(told["mark"], shorten(outcome))
