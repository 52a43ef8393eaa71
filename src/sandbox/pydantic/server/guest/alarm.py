"""Interrupts a cell, whether it computes or waits."""

import asyncio
import signal

from _interpreterd import finishing
from pyodide import webloop

BETWEEN, OURS, CELL = "between", "ours", "cell"
OURS_ALONE = ("<interpreterd ",)


class Alarm:
    """The worker strikes by a byte that busy code sees, and by a call while the event loop turns."""

    def __init__(self):
        self.phase = BETWEEN
        self.earlier = set()
        self.loop = None

    def begin(self):
        signal.signal(signal.SIGINT, self.struck)  # a program may have set its own
        self.loop = here()
        self.earlier = tasks(self.loop) | finishing.under_way
        self.phase = CELL

    def struck(self, _, frame):
        """Not where nobody would catch it, in code of ours between cells or of the event loop: there come more."""
        spared = () if self.phase == CELL else OURS_ALONE
        file = frame.f_code.co_filename if frame is not None else ""
        if self.phase != OURS and not file.startswith((webloop.__file__, *spared)):
            raise KeyboardInterrupt

    def cancel(self):
        """Called while the event loop turns: then every task of the cell waits for something."""
        if self.phase == CELL:
            for task in (tasks(self.loop, here()) | finishing.under_way) - self.earlier:
                task.cancel()


def here():
    """The event loop of programs, which they may have closed or replaced."""
    loop = asyncio.get_event_loop()
    if loop.is_closed():
        loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    return loop


def tasks(*loops):
    return {task for loop in loops for task in asyncio.all_tasks(loop)}


def quiet_loops():
    """A KeyboardInterrupt or SystemExit in a callback would otherwise leave Python, and end the worker."""
    for name in ("_keyboard_interrupt_handler", "_system_exit_handler"):
        setattr(webloop.WebLoop, name, property(lambda _: lambda *_: None, lambda *_: None))
