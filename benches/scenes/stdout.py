"""A hundred megabytes of output, in large pieces and in lines."""

import time

import processes
from bench import Bench
from service import Service

TOTAL = 100_000_000
KEPT = 2**20
PROGRAMS = {
    "prints of 1 MB": "s = 'x' * 999_999\nfor _ in range(100): print(s)",
    "lines of 100 characters": "s = 'x' * 99\nfor _ in range(1_000_000): print(s)",
}


def run(bench: Bench) -> None:
    with bench.service() as service:
        sessions = {name: service.create() for name in PROGRAMS}
        service.settle()
        for turn in range(bench.sizes.stdout_runs):
            for name, code in PROGRAMS.items():
                sample(bench, service, sessions[name], name, code, turn)


def sample(bench: Bench, service: Service, session: str, name: str, code: str, turn: int) -> None:
    pid = service.process.pid
    peak = can_forget_peak(bench, pid)
    before = processes.status_bytes(pid, "VmRSS")
    started = time.perf_counter()
    execution = service.exec(session, code, timeout_seconds=300)
    whole = time.perf_counter() - started
    assert execution["stdout_bytes"] == TOTAL, execution["stdout_bytes"]
    # what is kept has a line in it that says what was left out
    assert len(execution["stdout"]) < KEPT + 1000 and execution["truncated"], len(execution["stdout"])
    bench.record.add("stdout", name, turn, TOTAL / 1e6 / whole, "MB/s")
    if peak:
        growth = processes.status_bytes(pid, "VmHWM") - before
        bench.record.add("stdout_growth", name, turn, growth / 1e6, "MB")


def can_forget_peak(bench: Bench, pid: int) -> bool:
    try:
        processes.forget_peak(pid)
    except PermissionError:
        bench.note("the growth of the service's memory can be measured by root alone")
        return False
    return True
