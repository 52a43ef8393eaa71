"""What would end the server itself ends a cell, or fails."""

import builtins
import errno
import importlib
import os
import signal
import sys

HARMLESS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)


def install(streams):
    write = written(streams, own(os.write))
    strike = struck(own(signal.raise_signal))
    for name in ("os", "posix"):
        module = sys.modules[name]
        module._exit, module.abort, module.system = leave, abort, no_processes
        module.write, module.kill = write, killed(strike)
    for name in ("signal", "_signal"):
        sys.modules[name].raise_signal = strike


def own(function):
    """Without what ours have made of it before."""
    return getattr(function, "own", function)


def leave(status):
    raise SystemExit(status)


def abort():
    raise SystemExit(134)


def no_processes(command):
    raise OSError(errno.ENOTSUP, "there are no processes here")


def written(streams, own):
    """os.write, which reaches the streams by their descriptors."""

    def write(fd, data, /):
        if fd in (1, 2):
            return (streams.out, streams.err)[fd - 1].buffer.write(data)
        return own(fd, data)

    write.own = own
    return write


def struck(own):
    """signal.raise_signal, where nobody handles what ends a program."""

    def raise_signal(number, /):
        if signal.getsignal(number) is signal.SIG_DFL and number not in HARMLESS:
            raise SystemExit(128 + number)
        return own(number)

    raise_signal.own = own
    return raise_signal


def killed(strike):
    """os.kill: there is one process."""

    def kill(pid, number, /):
        if pid not in (0, -1, os.getpid()):
            raise ProcessLookupError(errno.ESRCH, "No such process")
        if number != 0:
            strike(number)

    return kill


def hold_loop(loop):
    """A task that exits must not end the server, whose loop gives that on to it."""
    for name in ("_system_exit_handler", "_keyboard_interrupt_handler"):
        if hasattr(loop, name):
            setattr(loop, name, ignore)


def ignore(*_):
    pass


class Needed:
    """What the server needs when a cell is over, from its loop to its next answer."""

    MODULES = (
        "_pyodide",
        "_pyodide_core",
        "pyodide",
        "pyodide_js",
        "js",
        "pydantic_core",
        "asyncio",
        "sys",
        "builtins",
    )
    # what honest programs replace, and keep
    REPLACED = ("_", "_interpreterd", "breakpoint", "help", "input", "open", "print")

    def __init__(self):
        try:
            importlib.import_module("pydantic_core")  # it imports that for its first answer
        except ImportError:
            pass  # it is another server
        self.modules = {name: part for name, part in sys.modules.items() if name.partition(".")[0] in self.MODULES}
        self.builtins = {name: part for name, part in vars(builtins).items() if name not in self.REPLACED}

    def restore(self):
        vars(builtins).update(self.builtins)
        for name, module in self.modules.items():
            if name not in sys.modules:
                sys.modules[name] = module
