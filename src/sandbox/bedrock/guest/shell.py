"""Command lines, under a deadline, with all that comes of them."""

import base64
import contextlib
import glob
import os
import signal
import subprocess
import time

from _interpreterd.captured import Captured, read_at

LOOKS_EVERY = 0.02
FOLLOWED = 128 << 10
TAG = "INTERPRETER_TAG"


def run(told, place):
    """Runs a program, and gives its streams, its exit code and why it was ended."""
    mark = told["id"]
    captured = Captured(place.aside, mark, told["output_bytes"])
    stop_file = os.path.join(place.aside, f"stop-{mark}")
    environ = {**os.environ, **told["env"], TAG: mark}
    began = time.monotonic()
    try:
        with source(told["stdin"]) as stdin:
            process = subprocess.Popen(
                told["argv"] or ["/bin/bash", *command(told["command"], place, mark)],
                cwd=place.files,
                env=environ,
                stdin=stdin,
                stdout=captured.files[0],
                stderr=captured.files[1],
                start_new_session=True,
            )
        reason = watch(process, captured, stop_file, began + told["seconds"])
        if reason is not None:
            end_all(f"{TAG}={mark}".encode())
        code = process.wait()
        out, err = captured.take()
        took = time.monotonic() - began
        return {
            "exit_code": 128 - code if code < 0 else code,
            "reason": reason,
            "ms": took * 1000,
            "stdout": out,
            "stderr": err,
        }
    finally:
        captured.close()
        for name in (f"stop-{mark}", f"command-{mark}"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(place.aside, name))


def command(text, place, mark):
    if len(text) < 30_000:
        return ["-l", "-c", text]
    path = os.path.join(place.aside, f"command-{mark}")  # longer ones are no argument of a program
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    return ["-l", path]


@contextlib.contextmanager
def source(text):
    if text is None:
        yield subprocess.DEVNULL
        return
    from _interpreterd.streams import given

    file = given(text)
    try:
        yield file
    finally:
        os.close(file)


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


def end_all(tag):
    """Ends all whose tag begins so; what is forked in one look is found by the next."""
    for _ in range(3):
        for entry in glob.glob("/proc/[0-9]*/environ"):
            with contextlib.suppress(OSError), open(entry, "rb") as environ:
                if any(line.startswith(tag) for line in environ.read().split(b"\0")):
                    os.kill(int(entry.split("/")[2]), signal.SIGKILL)


def follow(told, place):
    """What a running program has printed since the last look; waits until there is something."""
    ends = time.monotonic() + told["seconds"]
    paths = [os.path.join(place.aside, f"{told['id']}.{stream}") for stream in ("out", "err")]
    while True:
        news, is_over = {}, True
        for path, stream, seen in zip(paths, ("stdout", "stderr"), told["seen"], strict=False):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                is_over = False
                size = os.fstat(file.fileno()).st_size
                news[stream] = base64.b64encode(read_at(file.fileno(), seen, min(size - seen, FOLLOWED))).decode()
        if is_over or any(news.values()) or time.monotonic() >= ends:
            return {"is_over": is_over, **news}
        time.sleep(LOOKS_EVERY)
