"""Errors of a cell, told in parts and without frames of ours."""

import traceback

from _interpreterd.place import readable

CELLS, OURS = "<cell ", "<interpreterd "
MOST_TRACEBACK, MOST_MESSAGE = 200_000, 20_000
MOST_FRAMES = 60


def told(error, name):
    """Name, message, traceback, and the line of the cell where it arose."""
    try:
        frames = without_ours(error.__traceback__)
        line, text = line_in(error, frames, name), "".join(lines_of(error, frames)).rstrip("\n")
    except BaseException:
        line, text = None, f"{name_of(error)}: its traceback cannot be shown"
    if len(text) > MOST_TRACEBACK:
        text = f"{text[: MOST_TRACEBACK // 2]}\n...\n{text[-MOST_TRACEBACK // 2 :]}"
    return {"name": name_of(error), "message": message_of(error), "traceback": readable(text), "line": line}


def name_of(error):
    """The name of its class, whatever that says itself."""
    return readable(type.__dict__["__name__"].__get__(type(error)))


def message_of(value):
    try:
        return readable(str(value))[:MOST_MESSAGE]
    except BaseException:
        return "<unprintable>"


def lines_of(error, frames):
    limit = -MOST_FRAMES // 3 if length(frames) > MOST_FRAMES else None
    whole = traceback.TracebackException(type(error), error, frames, limit=limit)
    whole.stack[:] = [frame for frame in whole.stack if not frame.filename.startswith(OURS)]
    return whole.format()


def length(frames):
    count = 0
    while frames is not None:
        count, frames = count + 1, frames.tb_next
    return count


def without_ours(frames):
    """From the cell on: before it stand ours, and those of what awaits for it."""
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith(CELLS):
        frames = frames.tb_next
    return frames


def line_in(error, frames, name):
    line = None
    while frames is not None:
        if frames.tb_frame.f_code.co_filename == name:
            line = frames.tb_lineno
        frames = frames.tb_next
    if line is None and isinstance(error, SyntaxError) and error.filename == name:
        line = error.lineno
    return line if type(line) is int and 0 < line < 1 << 31 else None


def of_exit(error):
    """sys.exit() ends the cell with its code; the session lives on."""
    code = error.code if isinstance(error.code, int) else int(error.code is not None)
    code = int(code) & 0xFF
    if code == 0:
        return {"exit_code": 0, "error": None}
    message = message_of(error.code)
    text = f"SystemExit: {message}"
    return {"exit_code": code, "error": {"name": "SystemExit", "message": message, "traceback": text, "line": None}}
