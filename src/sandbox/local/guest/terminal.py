"""What programs ask of a terminal, where there is none: input, passwords, exit, a debugger."""

import builtins
import getpass
import sys

from IPython.core.autocall import ExitAutocall

NO_INPUT = "there is no terminal here: give the request a `stdin`, or put the value into the code"
NO_DEBUGGER = "there is no terminal for a debugger here: print what you want to see, or give the request a `stdin`"


def install(shell):
    """Takes the place of what Python and IPython have for a person at a keyboard."""
    builtins.input = read_line
    getpass.getpass = read_password
    leave = Exit(shell)
    shell.exiter = leave
    for name in ("exit", "quit"):
        shell.user_ns[name] = shell.user_ns_hidden[name] = leave  # hidden from %who
        shell.builtin_trap.auto_builtins[name] = leave  # modules have these from builtins


def read_line(prompt="", /):
    """Python's input(), which says what to do when there is nothing to read."""
    sys.stdout.write(str(prompt))
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError(NO_INPUT)
    return line.rstrip("\n")


def read_password(prompt="Password: ", stream=None, **_):
    """getpass.getpass(), with nothing to hide from."""
    return read_line(prompt)


class Exit(ExitAutocall):
    """exit, exit() and exit(3): the end of the cell, as it would be the end of a script."""

    def __call__(self, code=None):
        raise SystemExit(code)

    def __repr__(self):
        return "Use exit() to end the cell"
