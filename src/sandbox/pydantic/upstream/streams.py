"""A cell's standard streams: what it prints byte for byte within bounds, and what it reads."""

import base64
import contextvars
import io
import os
import sys

from _interpreterd import place

MOST_LATE = 64 << 10
CELL = contextvars.ContextVar("interpreterd_cell", default=None)  # tasks keep that of the cell that began them


class Captured:
    """Head, tail and length of what is printed, however long it is."""

    def __init__(self, most):
        self.most, self.bytes = most, 0
        self.head, self.tail = bytearray(), bytearray()

    def write(self, data):
        self.bytes += len(data)
        if self.most == 0:
            return
        room = self.most - len(self.head)
        self.head += data[:room]
        self.tail += data[room:][-self.most :]
        if len(self.tail) > 2 * self.most:
            del self.tail[: -self.most]

    def ends(self):
        if self.bytes <= self.most:
            return {"head": encoded(self.head), "tail": "", "bytes": self.bytes}
        half = self.most // 2
        rest = self.most - half
        tail = (self.head + self.tail)[-rest:]
        return {"head": encoded(self.head[:half]), "tail": encoded(tail), "bytes": self.bytes}


class Streams:
    """Lent to one cell after another. What is printed between cells, and by tasks of earlier ones, comes late."""

    def __init__(self):
        self.cell, self.captured, self.late = None, (), bytearray()
        self.out, self.err = Stream(Bytes(self, 0), 1), Stream(Bytes(self, 1), 2)
        self.stdin = None
        self.lend_stdin("")
        self.hold()

    def hold(self):
        """Ours are there always: the server's own would give a line without its end to the next caller."""
        sys.stdin = sys.__stdin__ = self.stdin
        sys.stdout = sys.__stdout__ = self.out
        sys.stderr = sys.__stderr__ = self.err

    def lend(self, cell, most, stdin):
        self.captured = (Captured(most), Captured(most))
        self.lend_stdin(stdin or "")
        self.hold()
        self.cell = cell
        return self.take_late()

    def take_back(self):
        """Whatever the cell has done to its streams."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # it is the program's
                pass
        out, err = (captured.ends() for captured in self.captured)
        self.cell, self.captured = None, ()
        self.lend_stdin("")
        fill_gaps()
        self.hold()
        return out, err

    def lend_stdin(self, text):
        """Descriptor 0 too: the server's own is the protocol with us, which no program may read."""
        place.prepare()  # a program may have removed all of it
        path = place.beside("stdin")
        with open(path, "wb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
        source = os.open(path, os.O_RDONLY)
        os.unlink(path)
        if source != 0:  # a program has closed it
            os.dup2(source, 0)
            os.close(source)
        reader = io.BufferedReader(io.FileIO(0, "r", closefd=False))
        self.stdin = io.TextIOWrapper(reader, encoding="utf-8", errors="replace")

    def write(self, number, data):
        if self.cell is not None and CELL.get() in (None, self.cell):
            self.captured[number].write(data)
        else:
            self.late += data
            del self.late[:-MOST_LATE]

    def take_late(self):
        text, self.late = bytes(self.late).decode("utf-8", "backslashreplace"), bytearray()
        return text


class Bytes(io.RawIOBase):
    """Below a stream: bytes as they are."""

    def __init__(self, streams, number):
        self._streams, self._number = streams, number

    def write(self, data):
        data = bytes(data)
        self._streams.write(self._number, data)
        return len(data)

    def fileno(self):
        return self._number + 1

    def writable(self):
        return True

    def isatty(self):
        return False

    def flush(self):
        pass

    def close(self):
        pass  # the next cell needs it

    closed = False


class Stream(io.TextIOBase):
    """What programs hold as their stdout or stderr, from cell to cell."""

    encoding, errors, newlines = "utf-8", "backslashreplace", None  # nothing that is printed can raise an error
    mode, line_buffering, write_through = "w", True, True

    def __init__(self, raw, number):
        self.buffer, self._number = raw, number
        self.name = ("<stdout>", "<stderr>")[number - 1]

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.buffer.write(str.encode(text, "utf-8", "backslashreplace"))
        return len(text)

    def reconfigure(self, **_):
        pass

    def fileno(self):
        return self._number

    def writable(self):
        return True

    def isatty(self):
        return False

    def flush(self):
        pass

    def close(self):
        pass

    closed = False


def fill_gaps():
    """What a program has closed must not become the number of the next file that is opened."""
    for number in (1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY)


def encoded(data):
    return base64.b64encode(data).decode()
