"""Ends a cell from inside: when its time is over, or when its caller wants it to."""

import _thread
import ctypes
import os
import signal
import stat
import threading
import time

LOOKS_EVERY = 0.1
STRIKES_EVERY = 0.5
NUMBER = signal.SIGRTMIN + 7  # programs use SIGALRM and SIGINT themselves
MAIN = threading.main_thread().ident


class CellEnded(BaseException):
    """A cell that does not hear KeyboardInterrupt must hear this."""


class Alarm:
    """Watches over one cell, which runs in the thread that makes it."""

    def __init__(self, stop_files, captured, seconds):
        self.stop_files, self.captured, self.seconds = stop_files, captured, seconds
        self.thread = _thread.get_ident()
        self.pid = os.getpid()
        self.lock = _thread.allocate_lock()
        self.over = _thread.allocate_lock()  # held while the cell runs
        self.running = False
        self.reason = None
        self.strikes = 0

    def __enter__(self):
        if self.thread == MAIN:
            # for good: a strike that comes late must find it
            signal.signal(NUMBER, self.heard)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [NUMBER])
        self.over.acquire()
        self.running = True
        # no thread that programs see: they wait for all that they see
        _thread.start_new_thread(self.watch, ())
        return self

    def __exit__(self, *_):
        self.running = False
        if os.getpid() != self.pid:
            return  # a child that was forked while the lock was held
        with self.lock:
            self.over.release()
            if self.thread != MAIN and self.strikes:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), None)

    def watch(self):
        ends = time.monotonic() + self.seconds
        strikes_at = None
        while True:
            now = time.monotonic()
            if self.reason is None and any(exists(file) for file in self.stop_files):
                self.reason, strikes_at = "interrupted", now
            if self.reason is None and now >= ends:
                self.reason, strikes_at = "timeout", now
            if strikes_at is not None and now >= strikes_at:
                self.strike()
                strikes_at = now + STRIKES_EVERY
            with self.lock:
                if not self.over.locked():
                    return
                self.captured.bound()
            if self.over.acquire(timeout=min(LOOKS_EVERY, max(ends - now, 0.01))):
                return

    def strike(self):
        with self.lock:
            if not self.over.locked():
                return
            self.strikes += 1
            if self.thread == MAIN:
                signal.pthread_kill(self.thread, NUMBER)
            else:
                kind = ctypes.py_object(self.kind())
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), kind)

    def kind(self):
        return KeyboardInterrupt if self.strikes <= 1 else CellEnded

    def heard(self, *_):
        if self.running:
            raise self.kind()


def exists(path):
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
