"""An event loop for whoever asks for one, in every cell as in the first."""

import asyncio
import threading
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # policies are deprecated, and Python has no other way yet
    Default = asyncio.DefaultEventLoopPolicy


class Policy(Default):
    """asyncio.run() takes the main thread's loop away, and scripts close theirs: the next cell gets a new one."""

    def get_event_loop(self):
        loop = self._local._loop
        if threading.current_thread() is threading.main_thread() and (loop is None or loop.is_closed()):
            self.set_event_loop(self.new_event_loop())
        return super().get_event_loop()


def install():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.set_event_loop_policy(Policy())
