"""What an idle session holds of the machine's memory."""

import contextlib
import os
import time

import machine
import names
import processes
from bench import Bench
from floor import IMPORTS
from rivals import IdlePython, RawKernel
from service import Service

RIVALS = 10
RESTS = 4 * 2**20
IMPORT = "import pandas; print(1+2)"
FRAME = "print(pandas.DataFrame({'a': [1, 2]})['a'].sum())"


def run(bench: Bench) -> None:
    if os.geteuid() != 0:
        bench.note("skipped: other users' memory can be read by root alone")
        return
    cold(bench)
    kernels(bench)
    sessions(bench)


def sessions(bench: Bench) -> None:
    count = bench.sizes.memory_sessions
    with bench.service() as service:
        before = available()
        made = [service.create() for _ in range(count)]
        run_in_all(service, made, IMPORT)
        record(bench, "memory_available", names.OURS, (before - available()) / count)
        tree, rooms = count_rooms(service, count)
        record_held(bench, names.OURS, tree.kernels + tree.room_inits, rooms)
        record(bench, "memory_part", "kernel", processes.pss_bytes(tree.kernels) / rooms)
        record(bench, "memory_part", "process 1 of the room", processes.pss_bytes(tree.room_inits) / rooms)
        record(bench, "memory_shared", "warm Python", processes.pss_bytes(tree.zygotes))
        record(bench, "memory_shared", "warden", processes.pss_bytes(tree.wardens))
        record(bench, "memory_shared", "service", processes.pss_bytes([service.process.pid]))
        run_in_all(service, made, FRAME)
        tree, rooms = count_rooms(service, count)
        record_held(bench, names.AFTER_FRAME, tree.kernels + tree.room_inits, rooms)


def run_in_all(service: Service, made: list[str], code: str) -> None:
    for session in made:
        assert service.exec(session, code)["stdout"] == "3\n"
    service.settle()


def count_rooms(service: Service, made: int) -> tuple[processes.Tree, int]:
    """The service's processes, and how many sandboxes they are: what lies in the pool is one too."""
    tree, rooms = processes.tree(service.process.pid), made + service.pooled()
    found = len(tree.kernels), len(tree.room_inits)
    assert found == (rooms, rooms), (found, rooms)
    return tree, rooms


def cold(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        before = available()
        pythons = [stack.enter_context(contextlib.closing(IdlePython())) for _ in range(RIVALS)]
        pids = [python.ready() for python in pythons]
        record_held(bench, names.COLD, pids, RIVALS)
        record(bench, "memory_available", names.COLD, (before - available()) / RIVALS)


def kernels(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        before = available()
        pids = []
        for _ in range(RIVALS):
            kernel = stack.enter_context(contextlib.closing(RawKernel()))
            kernel.first("1+1")
            kernel.run(f"import {IMPORTS}")
            pids.append(kernel.pid())
        record_held(bench, names.RAW_IMPORTS, pids, RIVALS)
        record(bench, "memory_available", names.RAW_IMPORTS, (before - available()) / RIVALS)


def available() -> int:
    """MemAvailable, once it rests: what ended before gives its memory back a moment later."""
    now, before = machine.meminfo_bytes("MemAvailable"), None
    for _ in range(8):
        if before is not None and abs(now - before) < RESTS:
            break
        time.sleep(1)
        now, before = machine.meminfo_bytes("MemAvailable"), now
    return now


def record_held(bench: Bench, name: str, pids: list[int], count: int) -> None:
    record(bench, "memory", name, processes.pss_bytes(pids) / count)
    record(bench, "memory_private", name, processes.private_bytes(pids) / count)


def record(bench: Bench, benchmark: str, name: str, held: float) -> None:
    bench.record.add(benchmark, name, 0, held / 2**20, "MiB")
