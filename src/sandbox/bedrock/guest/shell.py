"""Command lines, under a deadline, with all that comes of them."""

import glob
import os
import signal
import subprocess
import time

from _interpreterd.captured import Captured, encoded, read_at
from _interpreterd.place import open_regular, remove, write
from _interpreterd.streams import given

LOOKS_EVERY = 0.02
LAST_WAIT = 2
FOLLOWED = 128 << 10
TAG = "INTERPRETER_TAG"


def run(told, place):
    """Runs a program, and gives its streams, its exit code and why it was ended. An OSError: it was not begun."""
    mark = told["id"]
    captured = Captured(place, mark, told["output_bytes"])
    stop_file = place.beside(f"stop-{mark}")
    tag = mark_of(place) + mark
    try:
        stdin = given(place, f"stdin-{mark}", told["stdin"])
        process = subprocess.Popen(
            told["argv"] or ["/bin/bash", *command(told["command"], place, mark)],
            cwd=place.files,
            env={**os.environ, **told["env"], TAG: tag},
            stdin=stdin,
            stdout=captured.files[0],
            stderr=captured.files[1],
            start_new_session=True,
        )
        return outcome(process, captured, stop_file, f"{TAG}={tag}".encode(), told["seconds"])
    finally:
        captured.close()
        for name in (f"stop-{mark}", f"command-{mark}"):
            remove(place.beside(name))


def mark_of(place):
    """How the marks of all commands of one sandbox begin."""
    return f"{place.aside}:"


def outcome(process, captured, stop_file, tag, seconds):
    began = time.monotonic()
    try:
        reason = watch(process, captured, stop_file, began + seconds)
        if reason is not None:
            end_all(process, tag)
        code = ended(process)
        took = time.monotonic() - began
        out, err = captured.take()
    except OSError as error:
        raise RuntimeError("it was begun") from error  # no refusal any more
    return {"exit_code": code, "reason": reason, "ms": took * 1000, "stdout": out, "stderr": err}


def command(text, place, mark):
    if len(text) < 30_000:
        return ["-l", "-c", text]
    path = place.beside(f"command-{mark}")  # longer ones are no argument of a program
    write(path, text.encode("utf-8", "surrogateescape"))
    return ["-l", path]


def watch(process, captured, stop_file, ends):
    """Waits for its end. Gives why it must be ended, or None."""
    pause = 0.002
    while process.poll() is None:
        if os.path.exists(stop_file):
            return "interrupted"
        if time.monotonic() >= ends:
            return "timeout"
        captured.bound()
        time.sleep(min(pause, LOOKS_EVERY))
        pause *= 2
    return None


def ended(process):
    """The exit code of a program that has ended, or must have."""
    try:
        code = process.wait(LAST_WAIT)
    except subprocess.TimeoutExpired:
        return 137  # the kernel of this machine does not let go of it
    return 128 - code if code < 0 else code


def end_all(process, tag):
    """Ends a program with its group, and all that bears its tag."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    end_tagged(tag)


def end_tagged(tag):
    """Ends all whose tag begins so; what is forked in one look is found by the next."""
    for _ in range(3):
        for entry in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(entry, "rb") as environ:
                    if any(line.startswith(tag) for line in environ.read().split(b"\0")):
                        os.kill(int(entry.split("/")[2]), signal.SIGKILL)
            except OSError:
                pass


def follow(told, place):
    """What a running program has printed since the last look; waits until there is something."""
    ends = time.monotonic() + told["seconds"]
    paths = [place.beside(f"{told['id']}.{stream}") for stream in ("out", "err")]
    while True:
        news, is_over = {}, True
        for path, stream, seen in zip(paths, ("stdout", "stderr"), told["seen"], strict=True):
            try:
                file = open_regular(path)
            except OSError:
                continue
            is_over = False
            news[stream] = encoded(read_at(file, seen, min(os.fstat(file).st_size - seen, FOLLOWED)))
            os.close(file)
        if is_over or any(news.values()) or time.monotonic() >= ends:
            return {"is_over": is_over, **news}
        time.sleep(LOOKS_EVERY)
