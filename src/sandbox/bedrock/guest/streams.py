"""A cell's standard streams: descriptors 0 to 2, and Python's layers on them."""

import _thread
import builtins
import io
import os
import sys
import threading

from _interpreterd.captured import aloft
from _interpreterd.place import remove, write

MOST_LATE = 64 << 10
CELL = "_interpreterd_cell"  # of a thread: the cell that it belongs to
NAMES = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")


class Streams:
    """Lent to one cell after another. Between cells everything is as the interpreter had it."""

    def __init__(self, place):
        self.place = place
        self.cell, self.ident = None, None
        self.late = ""
        self.out, self.err = Stream(self, 1), Stream(self, 2)
        mark_threads(self)

    def lend(self, cell, captured, stdin):
        source = given(self.place, f"stdin-{cell}", stdin)
        self.objects = [unwrapped(getattr(sys, name, None)) for name in NAMES]
        self.input = builtins.input
        for stream in self.objects:
            flush(stream)  # else it would come within the cell
        self.saved = [aloft(os.dup(number)) if is_open(number) else None for number in range(3)]
        os.dup2(source, 0)
        os.close(source)
        for number, file in enumerate(captured.files, start=1):
            os.dup2(file, number)
        self.out.layer, self.err.layer = layer(1), layer(2)
        self.cell, self.ident = cell, _thread.get_ident()
        for thread in threading.enumerate():
            if waits_for_work(thread):
                setattr(thread, CELL, cell)
        reader = io.BufferedReader(io.FileIO(0, "r", closefd=False))
        sys.stdin = sys.__stdin__ = io.TextIOWrapper(reader, encoding="utf-8", errors="replace")
        sys.stdout = sys.__stdout__ = self.out
        sys.stderr = sys.__stderr__ = self.err
        builtins.input = read_line

    def flush(self):
        for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None), self.out.layer, self.err.layer):
            flush(stream)

    def take_back(self):
        """Whatever the cell has done to its streams."""
        self.flush()
        # what could not be sent goes now, while it can reach nobody
        self.out.layer, self.err.layer = nowhere(), nowhere()
        self.cell, self.ident = None, None
        for name, stream in zip(NAMES, self.objects, strict=True):
            setattr(sys, name, stream)
        # what threads of cells print must not fill the answer of the call that still goes on
        sys.stdout, sys.stderr = Between(self, sys.stdout), Between(self, sys.stderr)
        builtins.input = self.input
        # last: what is let go of above may close them
        for number, saved in enumerate(self.saved):
            try:
                if saved is not None:
                    os.dup2(saved, number)
                    os.close(saved)
                elif is_open(number):
                    os.close(number)
            except OSError:
                pass  # a program has closed ours

    def owner(self):
        """The cell that the current thread belongs to: what threads of earlier ones print comes late."""
        if _thread.get_ident() == self.ident:
            return self.cell
        return getattr(threading.current_thread(), CELL, self.cell)

    def come_late(self, text):
        self.late = (self.late + text)[-MOST_LATE:]
        return len(text)

    def take_late(self):
        text, self.late = self.late, ""
        return text


class Stream(io.TextIOBase):
    """What programs hold as their stdout or stderr, from cell to cell."""

    def __init__(self, streams, number):
        self._streams, self._number = streams, number
        self.layer = nowhere()

    def write(self, text):
        streams = self._streams
        if streams.cell is not None and streams.owner() == streams.cell:
            return self.layer.write(text)
        return streams.come_late(text)

    def flush(self):
        self.layer.flush()

    def writable(self):
        return True

    def isatty(self):
        return False

    def fileno(self):
        return self._number

    def close(self):
        self.flush()  # the next cell needs it

    closed = False

    @property
    def buffer(self):
        return self.layer.buffer

    @property
    def encoding(self):
        return self.layer.encoding

    @property
    def errors(self):
        return self.layer.errors

    def __getattr__(self, name):
        return getattr(self.layer, name)


class Between:
    """The interpreter's own stream between cells, for all but the threads of cells."""

    def __init__(self, streams, own):
        self._streams, self.own = streams, own

    def write(self, text):
        if hasattr(threading.current_thread(), CELL):
            return self._streams.come_late(text)
        return self.own.write(text)

    def __getattr__(self, name):
        return getattr(self.own, name)


def unwrapped(stream):
    return stream.own if isinstance(stream, Between) else stream


def mark_threads(streams):
    """A thread belongs to the cell of the thread that starts it."""
    start = threading.Thread.start

    def marked(thread):
        setattr(thread, CELL, streams.owner())
        return start(thread)

    threading.Thread.start = marked


def waits_for_work(thread):
    """Whether it is a pool's thread without work: what it prints next is the doing of a cell to come."""
    frame = sys._current_frames().get(thread.ident)
    pools = [("concurrent.futures.thread", "_worker"), ("multiprocessing.pool", "worker")]
    loops = [getattr(sys.modules.get(module), name, None) for module, name in pools]
    return frame is not None and frame.f_code in [loop.__code__ for loop in loops if loop is not None]


def layer(number):
    raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False), 32768)
    # nothing that a program prints can raise an encoding error
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def nowhere():
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")


def flush(stream):
    try:
        stream.flush()
    except BaseException:  # it is the program's
        pass


def is_open(number):
    try:
        os.fstat(number)
        return True
    except OSError:
        return False


def given(place, name, text):
    """Standard input for one program: the text, then its end; without text it ends at once."""
    if text is None:
        return os.open(os.devnull, os.O_RDONLY)
    path = place.beside(name)
    write(path, text.encode("utf-8", "surrogatepass"))
    try:
        return os.open(path, os.O_RDONLY)
    finally:
        remove(path)


def read_line(prompt="", /):
    """The function input, which some interpreters have replaced by a question to a person."""
    sys.stdout.write(str(prompt))
    line = sys.stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line")
    return line.rstrip("\n")
