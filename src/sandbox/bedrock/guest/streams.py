"""A cell's standard streams: descriptors 0 to 2, and Python's layers on them."""

import builtins
import io
import os
import sys
import tempfile
import threading

MOST_LATE = 64 << 10


class Streams:
    """Lent to one cell after another. Between cells everything is as the interpreter had it."""

    def __init__(self):
        self.out, self.err = layer(1), layer(2)
        self.saved = []
        self.late = Late()

    def lend(self, captured, stdin):
        self.saved = [os.dup(number) if is_open(number) else None for number in range(3)]
        self.names = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")
        self.objects = [getattr(sys, name) for name in self.names]
        self.input = builtins.input
        source = given(stdin)
        os.dup2(source, 0)
        os.close(source)
        for number, file in enumerate(captured.files, start=1):
            os.dup2(file, number)
        self.out, self.err = usable(self.out, 1), usable(self.err, 2)
        out, err = self.out, self.err
        earlier = {thread for thread in threading.enumerate() if is_programs(thread)}
        if earlier:  # else nothing stands between a program and its streams: prints stay fast
            out, err = ThreadStream(out, self.late, earlier), ThreadStream(err, self.late, earlier)
        sys.stdin = sys.__stdin__ = io.TextIOWrapper(
            io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8", errors="replace"
        )
        sys.stdout = sys.__stdout__ = out
        sys.stderr = sys.__stderr__ = err
        builtins.input = read_line

    def flush(self):
        for stream in (sys.stdout, sys.stderr, self.out, self.err):
            try:
                stream.flush()
            except Exception:
                pass

    def take_back(self):
        """Whatever the cell has done to its streams."""
        for number, saved in enumerate(self.saved):
            if saved is None:
                os.close(number)
            else:
                os.dup2(saved, number)
                os.close(saved)
        for name, stream in zip(self.names, self.objects, strict=False):
            setattr(sys, name, stream)
        builtins.input = self.input


class Late(io.TextIOBase):
    """What threads of earlier cells print while a later one runs."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text = (self.text + text)[-MOST_LATE:]
        return len(text)

    def take(self):
        text, self.text = self.text, ""
        return text


class ThreadStream(io.TextIOBase):
    """A stream that is another one for some threads."""

    def __init__(self, own, late, earlier):
        self._own, self._late, self._earlier = own, late, earlier

    def write(self, text):
        return (self._late if threading.current_thread() in self._earlier else self._own).write(text)

    def flush(self):
        self._own.flush()

    def writable(self):
        return True

    def fileno(self):
        return self._own.fileno()

    @property
    def buffer(self):
        return self._own.buffer

    @property
    def encoding(self):
        return self._own.encoding

    @property
    def errors(self):
        return self._own.errors


def layer(number):
    raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False), 32768)
    # nothing that a program prints can raise an encoding error
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def usable(stream, number):
    """The layer, or a new one where a program has closed it or taken it apart."""
    try:
        return layer(number) if stream.closed else stream
    except ValueError:
        return layer(number)


def is_open(number):
    try:
        os.fstat(number)
        return True
    except OSError:
        return False


def is_programs(thread):
    return thread not in (threading.main_thread(), threading.current_thread()) and thread.name != "interpreterd"


def given(text):
    """Standard input for one cell: the text, then its end; without text it ends at once."""
    if text is None:
        return os.open(os.devnull, os.O_RDONLY)
    with tempfile.TemporaryFile() as file:
        file.write(text.encode("utf-8", "surrogatepass"))
        file.flush()
        source = os.dup(file.fileno())
    os.lseek(source, 0, os.SEEK_SET)
    return source


def read_line(prompt="", /):
    """The function input, which some interpreters have replaced by a question to a person."""
    sys.stdout.write(str(prompt))
    line = sys.stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line")
    return line.rstrip("\n")
