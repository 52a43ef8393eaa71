"""What a program prints, in files of its own: exact, and bounded whatever it prints."""

import base64
import ctypes
import fcntl
import os

from _interpreterd.place import remove

KEPT_WHOLE = 64 << 20  # of each stream, on disk while the program runs
LOWEST = 50  # descriptor of ours
HOLE = 0x3  # FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE


class Captured:
    """The two streams of one program. Others read the files while it runs; they go with its end."""

    def __init__(self, place, name, most):
        self.most = most
        self.paths = [place.beside(f"{name}.{stream}") for stream in ("out", "err")]
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self.files = [aloft(os.open(path, flags, 0o600)) for path in self.paths]

    def bound(self):
        """Gives the middle of what is very long back to the disk: sizes and ends stay as they are."""
        for file in self.files:
            size = os.fstat(file).st_size
            if size > KEPT_WHOLE:
                punch(file, self.most, size - KEPT_WHOLE // 2)

    def take(self):
        """Head, tail and length of both."""
        return [ends(file, self.most) for file in self.files]

    def bare(self):
        """The same where a program has closed what it should not."""
        try:
            return self.take()
        except OSError:
            return [{"head": "", "tail": "", "bytes": 0} for _ in self.files]

    def close(self):
        for file, path in zip(self.files, self.paths, strict=True):
            try:
                os.close(file)
            except OSError:
                pass
            remove(path)


def aloft(file):
    """A descriptor out of the way of those that programs expect, close, and open anew."""
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, LOWEST)
    finally:
        os.close(file)


def ends(file, most):
    size = os.fstat(file).st_size
    if size <= most:
        head, tail = read_at(file, 0, size), b""
    else:
        half = most // 2
        head, tail = read_at(file, 0, half), read_at(file, size - (most - half), most - half)
    return {"head": encoded(head), "tail": encoded(tail), "bytes": size}


def punch(file, first, end):
    try:
        arguments = [ctypes.c_int(file), ctypes.c_int(HOLE), ctypes.c_longlong(first), ctypes.c_longlong(end - first)]
        ctypes.CDLL(None, use_errno=True).fallocate(*arguments)
    except (OSError, AttributeError):  # then the disk's own bound holds
        pass


def read_at(file, first, length):
    pieces = []
    while length > 0:
        piece = os.pread(file, length, first)
        if not piece:
            break
        pieces.append(piece)
        first, length = first + len(piece), length - len(piece)
    return b"".join(pieces)


def encoded(data):
    return base64.b64encode(data).decode()
