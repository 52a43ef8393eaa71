"""Runs cells one after another in the interpreter that is one session's."""

import ast
import builtins
import gc
import inspect
import json
import linecache
import os
import sys

import pyodide
from _interpreterd import display, errors, figures, packages, taming
from _interpreterd.alarm import BETWEEN, OURS, Alarm, quiet_loops, tasks
from _interpreterd.finishing import finished, replace_waits
from _interpreterd.place import go_there, readable
from _interpreterd.streams import Streams

BALLAST = 2 << 20  # bytes that are given back so that a cell without memory can end well
MOST_RETURNED = 256 << 10  # characters of a value in the text block
MOST_TEXT = 1 << 20  # characters of the text that stands for a value
FIRST = ("sys", "builtins")  # imported anew they would be others
NEEDED = (*FIRST, "_frozen_importlib", "_imp", "_pyodide", "_pyodide_core", "asyncio", "js", "pyodide", "pyodide_js")
LIBRARY = os.path.dirname(os.path.dirname(pyodide.__file__))
HIDDEN = ("<interpreterd ", f"{LIBRARY}/pyodide/", f"{LIBRARY}/_pyodide/")  # of tracebacks


class Kernel:
    """What lives from cell to cell."""

    def __init__(self):
        self.module = sys.modules["__main__"]
        self.main = self.module.__dict__  # Pyodide holds this very dict: it must not be replaced
        self.ballast = bytearray(BALLAST)
        self.streams, self.alarm = Streams(), Alarm()
        self.builtins = dict(vars(builtins))
        self.environ, self.session_env = dict(os.environ), None
        errors.OURS = HIDDEN
        taming.tame()
        quiet_loops()
        replace_waits()

    def set_up(self, store, load):
        """Once the worker has the interpreter, fresh or from a snapshot."""
        packages.open_store(store, load)
        taming.reseed()
        taming.hide_javascript()
        figures.install(os.environ)
        for name in ("PYTHONINSPECT", "LD_LIBRARY_PATH"):  # which are no concern of programs
            os.environ.pop(name, None)
        self.environ = dict(os.environ)
        self.modules = {name: part for name, part in sys.modules.items() if name.partition(".")[0] in NEEDED}
        self.reset()

    def reset(self):
        """Forgets variables, tasks, and changes of the environment."""
        for task in tasks(self.alarm.loop) if self.alarm.loop else ():
            task.cancel()
        self.main.clear()
        self.main.update(__builtins__=builtins, __name__="__main__", __doc__=None, display=display.display)
        os.environ.clear()
        os.environ.update(self.environ)
        self.session_env = None
        go_there()
        gc.collect()

    def mend(self):
        """What an earlier cell has made unusable for all that come after it."""
        for name, value in self.builtins.items():
            if callable(value) and not callable(getattr(builtins, name, None)):
                setattr(builtins, name, value)
        for name, module in self.modules.items():
            if name in FIRST or name not in sys.modules:
                sys.modules[name] = module
        sys.modules["__main__"] = self.module
        self.main.update(__builtins__=builtins, __name__="__main__")
        if self.ballast is None:
            try:
                bytearray(3 * BALLAST)  # else it would take what this cell needs
                self.ballast = bytearray(BALLAST)
            except MemoryError:  # what has filled it is still there
                pass

    def flush(self):
        self.streams.flush_ours()

    def cancel(self):
        self.alarm.cancel()

    def run(self, text):
        """Runs a cell, told in JSON, and gives in JSON what came of it, whatever its code raises."""
        self.alarm.phase = OURS
        told = json.loads(text)
        self.mend()
        self.streams.renew()
        display.Current.shown = shown = display.Shown()
        if self.session_env is None and told["session_env"] is not None:
            self.session_env = told["session_env"]
            lend(self.session_env)
        lent = lend(told["env"])
        self.main.update(told["globals"])
        try:
            outcome = self.outcome(told["code"], f"<cell {told['count']}>")
        finally:
            display.Current.shown = None
            self.streams.flush_ours()
            lend(lent)
        outcome.update(outputs=shown.outputs, cut=shown.cut)
        answer = json.dumps(outcome)
        self.alarm.phase = BETWEEN
        return answer

    def outcome(self, code, name):
        self.alarm.begin()
        try:
            outcome = self.attempt(code, name)
            self.streams.flush()
            return outcome
        except BaseException as error:  # interrupted while an error was told
            name = errors.name_of(error)
            return {"exit_code": 1, "error": {"name": name, "message": "", "traceback": name, "line": None}}
        finally:
            self.alarm.phase = OURS

    def attempt(self, code, name):
        returned = None
        try:
            value = self.value(code, name)
            figures.show_left_open()
            if value is not None:
                self.main["_"] = value
                data, metadata = display.bundle(value)
                data["text/plain"] = shortened(str(data["text/plain"]))
                display.Current.shown.add(data, metadata, main=True)
                returned = returned_text(value) if len(data["text/plain"]) <= MOST_RETURNED else None
        except SystemExit as error:
            return errors.of_exit(error)
        except MemoryError as error:
            self.ballast = None
            error.__traceback__ = clear(error.__traceback__)
            gc.collect()
            return {"exit_code": 1, "error": errors.told(error, name)}
        except BaseException as error:
            told = packages.with_hint(errors.told(error, name), error, code)
            return {"exit_code": 130 if isinstance(error, KeyboardInterrupt) else 1, "error": told}
        return {"exit_code": 0, "error": None, "returned": returned}

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
                value = eval(part, self.main)
        return None if last is None or code.rstrip().endswith(";") else value

    def awaited(self, parts):
        """All of a cell that awaits runs in one task."""

        async def whole():
            value = None
            for part in parts:
                value = eval(part, self.main)
                if part.co_flags & inspect.CO_COROUTINE:
                    value = await value
            return value

        return finished(whole())


def clear(frames):
    """The frames of an error hold what has filled the memory."""
    first = frames
    while frames is not None:
        try:
            frames.tb_frame.clear()
        except RuntimeError:  # it still runs
            pass
        frames = frames.tb_next
    return first


def compile_part(tree, name, mode):
    return compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def lend(changes):
    """Changes the environment (None removes) and gives the changes that undo that."""
    undo = {name: os.environ.get(name) for name in changes}
    for name, value in changes.items():
        try:
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        except ValueError:  # no environment can hold it
            pass
    return undo


def shortened(text):
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT // 2]}\n...\n{text[-MOST_TEXT // 2 :]}"


def returned_text(value):
    """The value as the text block of the answer shows it, in JSON; None where that is too long."""
    try:
        text = json.JSONEncoder(default=told_otherwise, ensure_ascii=False).encode(value)
    except Exception:
        return None
    return readable(text) if len(text) <= MOST_RETURNED else None


def told_otherwise(value):
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    if isinstance(value, (set, frozenset)):
        return list(value)
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    return repr(value)
