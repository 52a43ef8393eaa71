"""Describes an exception as IPython does, without colours."""

import linecache
import traceback

LINE = 75
AROUND = 2
SIMILAR = 2  # frames of a recursion before they are counted only


def describe(error, files):
    """Name, value and traceback. `files` are the cells' numbers by the names of their files."""
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename in files and not cell_frames(error, files):
        shown = syntax_error(error, files)
        return {"name": name, "value": syntax_value(error), "traceback": shown}
    if isinstance(error, SystemExit):
        hint = "An exception has occurred, use %tb to see the full traceback.\n"
        return {"name": name, "value": text(error), "traceback": f"{hint}SystemExit: {text(error)}"}
    if name == "UsageError":
        return {"name": name, "value": text(error), "traceback": f"UsageError: {text(error)}"}
    return {"name": name, "value": text(error), "traceback": whole(error, files)}


def text(error):
    try:
        return str(error).encode("utf-8", "replace").decode()
    except Exception:  # a broken __str__
        return "<exception str() failed>"


def syntax_value(error):
    return f"{error.msg} ({str(error.filename).rsplit('/', 1)[-1]}, line {error.lineno})"


def syntax_error(error, files):
    _, *rest = traceback.format_exception_only(type(error), error)
    return f"  Cell In[{files[error.filename]}], line {error.lineno}\n{''.join(rest)}"


def whole(error, files, seen=()):
    before = ""
    cause, sentence = error.__cause__, "The above exception was the direct cause of the following exception:"
    if cause is None and not error.__suppress_context__:
        cause, sentence = error.__context__, "During handling of the above exception, another exception occurred:"
    if cause is not None and cause not in seen:
        before = f"{whole(cause, files, (*seen, error))}\n\n{sentence}\n\n"
    name = type(error).__name__
    head = name + "Traceback (most recent call last)".rjust(LINE - len(name))
    frames = frames_text(cell_frames(error, files), files)
    last = f"{name}: {text(error)}"
    if isinstance(error, SyntaxError):
        last = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    return before + "-" * LINE + head + "".join(frames) + last


def cell_frames(error, files):
    """The frames from the first that belongs to a cell."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    while frames and frames[0][0].f_code.co_filename not in files:
        frames.pop(0)
    return frames


def frames_text(frames, files):
    """The text of each frame; of a deep recursion only the first ones."""
    shown, similar = [], 0
    for number, (frame, line) in enumerate(frames):
        before = [(one.f_code, at) for one, at in frames[max(0, number - SIMILAR) : number]]
        similar = similar + 1 if before == [(frame.f_code, line)] * SIMILAR else 0
        last = number + 1 == len(frames) or (frames[number + 1][0].f_code, frames[number + 1][1]) != (
            frame.f_code,
            line,
        )
        if similar and last:
            name = frame.f_code.co_name
            shown.append(f"    [... skipping similar frames: {name} at line {line} ({similar} times)]\n")
        elif not similar:
            shown.append(frame_text(frame, line, files))
    return shown


def frame_text(frame, line, files):
    code = frame.f_code
    where = f"File {code.co_filename}:{line}"
    if code.co_filename in files:
        where = f"Cell In[{files[code.co_filename]}], line {line}"
    if code.co_name != "<module>":
        qualified = getattr(code, "co_qualname", code.co_name)
        arguments = ", ".join(code.co_varnames[: code.co_argcount])
        where += f", in {qualified}({arguments})"
    return f"{where}\n{around(code.co_filename, line)}"


def around(name, line):
    shown = []
    lines = linecache.getlines(name)
    for number in range(max(1, line - AROUND), min(len(lines), line + AROUND) + 1):
        arrow = "-" * (5 - len(str(number))) + f"> {number}" if number == line else f"{number:7}"
        shown.append(f"{arrow} {lines[number - 1].rstrip()}".rstrip() + "\n")
    return "".join(shown)
