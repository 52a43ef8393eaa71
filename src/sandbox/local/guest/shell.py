"""IPython as the kernel uses it: displays, results and errors become frames."""

import os
import sys
import traceback
import types

from interpreterd_guest.channel import bundle, clean, jsonable
from interpreterd_guest.hints import hint

OUR_FOLDER = os.path.dirname(__file__)
MAX_TRACEBACK, MAX_MESSAGE = 200_000, 20_000
MAX_TRACEBACK_FRAMES, SHOWN_FRAMES = 60, 20


def flush():
    """Brings buffered text into the pipes, so that it stands before the next frame."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


class Current:
    """The cell that runs now, where IPython's hooks can find it."""

    channel = None
    cell_id = None
    began = False  # its code was handed to the shell
    errors = 0  # how many have been told of this cell
    traceback = ""  # of the last one
    display_failed = False  # its value could not be shown: an error that IPython does not report


def emit(kind, data, metadata=None, **more):
    if Current.channel is None:
        return
    flush()
    content, cut = bundle(data)
    frame = {"t": kind, "id": Current.cell_id, "data": content, **more}
    if metadata:
        frame["metadata"] = jsonable(metadata)
    if cut:
        frame["cut"] = cut
    Current.channel.send(frame)


def make_shell():
    """An InteractiveShell whose displays, results and errors become frames."""
    import warnings

    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Hook(DisplayHook):
        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            emit("result", format_dict, md_dict, n=self.prompt_count)

        def finish_displayhook(self):
            pass

        def compute_format_data(self, result):
            before = Current.errors
            data, metadata = super().compute_format_data(result)
            Current.display_failed |= "text/plain" not in data and Current.errors > before
            return data, metadata

        def cull_cache(self):
            """Drops the oldest of Out without IPython's warning, which would be the cell's stderr."""
            kept = self.shell.user_ns["_oh"]
            for number in sorted(kept)[: max(int(len(kept) * self.cull_fraction), 2)]:
                self.shell.user_ns.pop(f"_{number}", None)
                kept.pop(number, None)

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **_):
            more = {}
            if transient and transient.get("display_id"):
                more = {"display_id": str(transient["display_id"]), "update": bool(update)}
            emit("display", data, metadata, **more)

        def clear_output(self, wait=False):
            if Current.channel is not None:
                flush()
                Current.channel.send({"t": "clear", "id": Current.cell_id, "wait": bool(wait)})

    class Shell(InteractiveShell):
        displayhook_class = Hook
        display_pub_class = Publisher
        system = InteractiveShell.system_raw  # needs no terminal; output goes to descriptors 1 and 2

        def enable_gui(self, gui=None):
            pass

        def ask_exit(self):
            pass  # exit() and quit() end the cell, not the session

        def showtraceback(self, exc_tuple=None, *args, **kwargs):
            kind, value, frames = exc_tuple if exc_tuple is not None else sys.exc_info()
            told = Current.errors
            try:
                self._show(kind, value, frames, *args, **kwargs)
            finally:
                if Current.errors == told and not isinstance(value, KeyboardInterrupt):
                    send_error(kind, value, [f"{name_of(kind)}: its traceback cannot be shown"])

        def _show(self, kind, value, frames, *args, **kwargs):
            if kind is not None and issubclass(kind, SystemExit):
                return self._showtraceback(kind, value, traceback.format_exception_only(value))
            frames = without_our_frames(frames)
            shown = long_traceback(kind, value, frames)
            if shown is not None:
                return self._showtraceback(*shown)
            if holds_group(value):  # IPython has no words of its own for these
                lines = traceback.format_exception(kind, value, frames and frames.tb_next)
                return self._showtraceback(kind, value, ["".join(lines)])
            return super().showtraceback((kind, value, frames), *args, **kwargs)

        def show_usage_error(self, exc):
            send_error(type(exc), exc, [f"UsageError: {exc}"])

        def _format_exception_for_storage(self, *_, **__):
            return {}  # IPython 9 formats every traceback a second time for its history

        def _showtraceback(self, etype, evalue, stb):
            send_error(etype, evalue, stb)

    warnings.filterwarnings("ignore", message="To exit: use|You executed the system command !pip")
    config = Config()
    config.HistoryManager.enabled = False  # no thread, no sqlite
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.xmode = "Context"
    config.InteractiveShell.autocall = 0
    config.InteractiveShell.cache_size = 50
    config.InteractiveShell.enable_tip = False
    shell = Shell.instance(config=config)
    replace_installers(shell)
    return shell


def replace_installers(shell):
    """%pip without its note on kernels; the others can do nothing here."""

    def pip(line):
        shell.system(f"{sys.executable} -m pip {line}")

    def no_install(line):
        from pip import NO_INSTALL  # the one that stands before the real pip

        print(NO_INSTALL, file=sys.stderr)

    shell.register_magic_function(pip, "line", "pip")
    for name in ("conda", "mamba", "micromamba", "uv"):
        shell.register_magic_function(no_install, "line", name)


def forget(shell):
    """Back to a fresh namespace after warming."""
    shell.reset(new_session=False)
    shell.history_manager.input_hist_parsed[:] = [""]
    shell.history_manager.input_hist_raw[:] = [""]
    shell.user_module.__spec__ = None  # multiprocessing's spawn and forkserver look at it
    shell.execution_count = 1


def holds_group(error, most=10):
    """Whether a group of exceptions is in the chain that ends with this one."""
    if error is None or most == 0:
        return False
    return isinstance(error, BaseExceptionGroup) or holds_group(error.__context__, most - 1)


def without_our_frames(frames):
    """A traceback without the frames of this package: they are nobody's business."""
    kept = []
    while frames is not None:
        if not frames.tb_frame.f_code.co_filename.startswith(OUR_FOLDER):
            kept.append(frames)
        frames = frames.tb_next
    for frame in reversed(kept):
        frames = types.TracebackType(frames, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return frames


def long_traceback(kind, value, frames):
    """A context traceback of a thousand frames takes seconds: long ones show their last frames."""
    count, frame = 0, frames
    while frame is not None:
        count, frame = count + 1, frame.tb_next
    if count <= MAX_TRACEBACK_FRAMES:
        return None
    lines = traceback.format_exception(kind, value, frames, limit=-SHOWN_FRAMES, chain=False)
    return kind, value, [f"[{count} frames, the last {SHOWN_FRAMES} shown]\n", *lines]


def send_error(kind, value, lines):
    Current.errors += 1
    if Current.channel is None:
        return
    flush()
    text = "\n".join(clean(str(line)) for line in lines).strip("\n")
    if len(text) > MAX_TRACEBACK:
        text = f"{text[: MAX_TRACEBACK // 2]}\n...\n{text[-MAX_TRACEBACK // 2 :]}"
    Current.traceback = text
    try:
        message = clean(str(value))[:MAX_MESSAGE]
    except Exception:
        message = "<unprintable>"
    advice = advice_on(value)
    if advice:
        text, message = f"{text}\n{advice}", f"{message}\n{advice}"
    frame = {"t": "error", "id": Current.cell_id, "ename": name_of(kind), "evalue": message, "traceback": text}
    line = line_in_cell(value)
    if line is not None:
        frame["line"] = line
    Current.channel.send(frame)


def name_of(kind):
    """The name of a class, whatever it says itself."""
    return clean(type.__dict__["__name__"].__get__(kind)) if isinstance(kind, type) else "Exception"


def advice_on(error):
    try:
        return hint(error)
    except Exception:  # it looks at what user code may have changed
        return None


def line_in_cell(error):
    """The line of the cell where the error arose, or None when it arose elsewhere."""
    if isinstance(error, SyntaxError) and error.lineno and not error.__traceback__:
        return int(error.lineno)
    line, frame = None, getattr(error, "__traceback__", None)
    while frame is not None:
        if frame.tb_frame.f_globals.get("__name__") == "__main__":
            line = frame.tb_lineno
        frame = frame.tb_next
    if line is None and isinstance(error, SyntaxError) and error.lineno:
        return int(error.lineno)
    return line
