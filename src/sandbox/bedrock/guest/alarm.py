"""Ends a cell from inside: when its time is over, or when its caller wants it to."""

import ctypes
import os
import signal
import threading
import time

LOOKS_EVERY = 0.1
STRIKES_EVERY = 0.5
NUMBER = signal.SIGRTMIN + 7  # programs use SIGALRM and SIGINT themselves


class CellEnded(BaseException):
    """A cell that does not hear KeyboardInterrupt must hear this."""


class Alarm:
    """Watches over one cell, which runs in the thread that makes it."""

    def __init__(self, stop_files, captured, seconds):
        self.stop_files, self.captured, self.seconds = stop_files, captured, seconds
        self.thread = threading.get_ident()
        self.is_main = threading.current_thread() is threading.main_thread()
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.running = False
        self.reason = None
        self.strikes = 0

    def __enter__(self):
        if self.is_main:
            # for good: a strike that comes late must find it
            signal.signal(NUMBER, self.heard)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [NUMBER])
        self.running = True
        self.watcher = threading.Thread(target=self.watch, name="interpreterd", daemon=True)
        self.watcher.start()
        return self

    def __exit__(self, *_):
        self.running = False
        with self.lock:
            self.over.set()
            if not self.is_main:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), None)

    def watch(self):
        ends = time.monotonic() + self.seconds
        strikes_at = None
        while True:
            now = time.monotonic()
            if self.reason is None and any(os.path.exists(file) for file in self.stop_files):
                self.reason, strikes_at = "interrupted", now
            if self.reason is None and now >= ends:
                self.reason, strikes_at = "timeout", now
            if strikes_at is not None and now >= strikes_at:
                self.strike()
                strikes_at = now + STRIKES_EVERY
            with self.lock:
                if self.over.is_set():
                    return
                self.captured.bound()
            if self.over.wait(min(LOOKS_EVERY, max(ends - now, 0.01))):
                return

    def strike(self):
        with self.lock:
            if self.over.is_set():
                return
            self.strikes += 1
            if self.is_main:
                signal.pthread_kill(self.thread, NUMBER)
            else:
                kind = ctypes.py_object(self.kind())
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), kind)

    def kind(self):
        return KeyboardInterrupt if self.strikes <= 1 else CellEnded

    def heard(self, *_):
        if self.running:
            raise self.kind()
