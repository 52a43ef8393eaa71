"""Warm cells in a session whose folder holds many files."""

import time

from bench import Bench
from client import encode
from service import Service, exec_path, success

COUNTS = (10, 1_000, 60_000)
BLOCK = 5
CODE = "pass"
MAKE = """
import os
for i in range({count}):
    if i % 1000 == 0:
        os.makedirs(f"d{{i // 1000}}")
    with open(f"d{{i // 1000}}/f{{i}}.txt", "w") as file:
        file.write(str(i))
print(sum(len(names) for _, _, names in os.walk(".")))
"""


def run(bench: Bench) -> None:
    with bench.service() as service:
        sessions = {}
        for count in COUNTS:
            sessions[count] = service.create()
            made = service.exec(sessions[count], MAKE.format(count=count), timeout_seconds=300)
            assert made["stdout"] == f"{count}\n", made["stdout"]
            service.exec(sessions[count], CODE)
        service.settle()
        for turn in range(-(-max(20, bench.sizes.samples) // BLOCK)):
            for count in COUNTS:
                few = count == max(COUNTS) and turn * BLOCK >= bench.sizes.many_files_samples
                if not few:
                    block(bench, service, sessions[count], count, turn)


def block(bench: Bench, service: Service, session: str, count: int, turn: int) -> None:
    path, body = exec_path(session), encode({"code": CODE})
    for _ in range(BLOCK):
        started = time.perf_counter()
        answer = service.client.call("POST", path, body)
        taken = (time.perf_counter() - started) * 1000
        assert success(answer)["files"] == [], "a cell that did nothing changed files"
        bench.record.add("files", f"{count:,} files", turn, taken, "ms")
