"""The magics that programs use most: `%pip`, `!command`, `%%bash` and a few more."""

import os
import re
import shlex
import subprocess
import sys
import time

ASSIGNED = re.compile(r"^(\s*)([A-Za-z_][\w., ]*?)\s*=\s*([!%])(.*)$")
VALUE = re.compile(r"\{([^{}]+)\}|\$([A-Za-z_]\w*)")
LINE = re.compile(r"^(\s*)([!%])(.+)$")
QUIET = ("matplotlib", "load_ext", "autoreload", "config", "reload_ext", "precision")


class UsageError(Exception):
    """As IPython has it."""


def translate(code):
    """The code with every magic replaced by a call of `_run_magic(kind, rest)`."""
    first, _, body = code.lstrip("\n").partition("\n")
    if first.startswith("%%"):
        return f"_run_magic('%%', {first[2:]!r}, {body!r})"
    return "\n".join(translate_line(line) for line in code.split("\n"))


def translate_line(line):
    if found := ASSIGNED.match(line):
        indent, name, kind, rest = found.groups()
        return f"{indent}{name} = _run_magic({'value' + kind!r}, {rest!r})"
    if found := LINE.match(line):
        indent, kind, rest = found.groups()
        return f"{indent}_run_magic({kind!r}, {rest!r})"
    return line


def run(kernel, kind, rest, body=None):
    if kind == "!":
        shell(expand(kernel, rest))
    elif kind == "value!":
        command = ["/bin/bash", "-c", expand(kernel, rest)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    elif kind == "%%":
        cell_magic(kernel, rest, body)
    else:
        return line_magic(kernel, rest)


def expand(kernel, command):
    """Puts in the values of `{expression}` and `$name`; what has none stays."""

    def value_of(found):
        try:
            return str(eval(found[1] or found[2], kernel.names))
        except Exception:  # it is for the shell
            return found[0]

    return VALUE.sub(value_of, command)


def shell(command):
    # a child of the shell's kind writes to our descriptors, so it is shown as it comes
    status = subprocess.call(["/bin/bash", "-c", command])
    sys.modules["__main__"].__dict__["_exit_code"] = status


def line_magic(kernel, rest):
    name, _, argument = rest.strip().partition(" ")
    argument = argument.strip()
    if name == "pip":
        shell(f"{shlex.quote(sys.executable)} -m pip {argument}")
        print("Note: you may need to restart the kernel to use updated packages.")
    elif name == "cd":
        os.chdir(os.path.expanduser(argument.strip("'\"") or "~"))
        print(os.getcwd())
    elif name == "pwd":
        return os.getcwd()
    elif name == "ls":
        shell(f"ls {argument}")
    elif name in ("env", "set_env"):
        return environment(argument)
    elif name == "time":
        timed(kernel, argument)
    elif name == "who":
        print(" ".join(key for key in kernel.names if not key.startswith("_")))
    elif name not in QUIET:
        raise UsageError(f"Line magic function `%{name}` not found.")


def environment(argument):
    name, separator, value = argument.partition("=" if "=" in argument else " ")
    if not separator:
        return os.environ.get(name) if name else dict(os.environ)
    os.environ[name.strip()] = value.strip()
    print(f"env: {name.strip()}={value.strip()}")


def cell_magic(kernel, rest, body):
    name, _, argument = rest.strip().partition(" ")
    if name in ("bash", "sh", "script"):
        program = argument.split() if name == "script" else [name]
        done = subprocess.run(program, input=body, text=True)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, body.encode())
    elif name in ("writefile", "file"):
        append = argument.startswith("-a ")
        path = argument.removeprefix("-a ").strip().strip("'\"")
        existed = os.path.exists(path)
        with open(path, "a" if append else "w") as file:
            file.write(body)
        print(f"{'Appending to' if append else 'Overwriting' if existed else 'Writing'} {path}")
    elif name == "time":
        timed(kernel, body)
    elif name == "capture":
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(body, kernel.names)
    else:
        raise UsageError(f"Cell magic `%%{name}` not found.")


def timed(kernel, code):
    cpu, wall = time.process_time(), time.perf_counter()
    exec(code, kernel.names)
    print(f"CPU times: total: {(time.process_time() - cpu) * 1000:.3g} ms")
    print(f"Wall time: {(time.perf_counter() - wall) * 1000:.3g} ms")
