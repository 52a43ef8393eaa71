"""A cell's standard streams: Python's layers on the descriptors 0 to 2, which the worker makes anew."""

import io
import sys


class Streams:
    """Programs replace, close and forget their streams; each cell begins with good ones."""

    def __init__(self):
        self.out, self.err = Stream(1), Stream(2)

    def renew(self):
        reader = io.BufferedReader(io.FileIO(0, "r", closefd=False))
        sys.stdin = sys.__stdin__ = io.TextIOWrapper(reader, encoding="utf-8", errors="replace")
        self.out.layer, self.err.layer = layer(1), layer(2)
        sys.stdout = sys.__stdout__ = self.out
        sys.stderr = sys.__stderr__ = self.err

    def flush(self):
        """Runs code of the program, if it has put its own streams there."""
        flush(getattr(sys, "stdout", None))
        flush(getattr(sys, "stderr", None))

    def flush_ours(self):
        flush(self.out.layer)
        flush(self.err.layer)


class Stream(io.TextIOBase):
    """What programs hold as their stdout or stderr, from cell to cell."""

    def __init__(self, number):
        self._number = number
        self.layer = layer(number)

    def write(self, text):
        return self.layer.write(text)

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


def layer(number):
    raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False), 32768)
    # nothing that a program prints can raise an encoding error
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def flush(stream):
    try:
        stream.flush()
    except BaseException:  # it is the program's
        pass
