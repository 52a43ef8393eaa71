"""The least that a sandbox made by a fork can cost: fork, unshare, exit, wait."""

import subprocess
import sys
from pathlib import Path

IMPORTS = "IPython, numpy, pandas, matplotlib.pyplot"


class Floor:
    """A warm Python that forks when it is told to, and says how long that took."""

    def __init__(self):
        command = [sys.executable, Path(__file__).resolve()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError("the floor's process did not start")

    def sample_ms(self) -> float:
        self.process.stdin.write(b"fork\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()) / 1e6

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def main() -> None:
    import ctypes
    import os
    import time

    # the same modules as the service's own warm Python: a fork copies their page tables
    exec(f"import {IMPORTS}")
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    # mount, cgroup, host name, IPC, user, process and network namespaces: linux/sched.h
    spaces = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter_ns()
        child = os.fork()
        if child == 0:
            os._exit(0 if unshare(spaces) == 0 else ctypes.get_errno())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        taken = time.perf_counter_ns() - started
        if status != 0:
            raise OSError(status, os.strerror(status))
        print(taken, flush=True)


if __name__ == "__main__":
    main()
