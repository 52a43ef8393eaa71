"""Whole short lives: create, one cell, delete, over and over."""

import json
import time

import load
import names
from bench import Bench
from client import encode, request
from samples import percentile
from service import Service, exec_path

CALLERS = (1, 2, 4, 8, 16, 32)
CREATE = request("POST", "/v1/sessions", b"{}")
CELL = encode({"code": "print(1+1)"})


def run(bench: Bench) -> None:
    with bench.service() as pooled, bench.service(pool=False) as unpooled:
        for turn in range(bench.sizes.churn_rounds):
            for callers in CALLERS:
                block(bench, names.OURS, pooled, callers, turn)
                block(bench, names.NO_POOL, unpooled, callers, turn)


def block(bench: Bench, name: str, service: Service, callers: int, turn: int) -> None:
    service.settle()
    taken: list[float] = []
    until = time.perf_counter() + bench.sizes.churn_seconds
    drive = load.drive(service.address, [caller(until, taken) for _ in range(callers)])
    contestant = f"{name}: {callers}"
    bench.record.add("churn", contestant, turn, len(taken) / drive.seconds, "lives/s")
    # tens of thousands of lives: their middle and their end are kept, not each of them
    for percent in (50, 99):
        bench.record.add(f"churn_life_p{percent}", contestant, turn, percentile(taken, percent), "ms")
    # ended sessions are taken apart after their answer: the other service must not pay for that
    service.settle()
    time.sleep(0.2)


def caller(until: float, taken: list[float]) -> load.Caller:
    while time.perf_counter() < until:
        started = time.perf_counter()
        session = json.loads((yield CREATE).expect(201).body)["id"]
        answer = yield request("POST", exec_path(session), CELL)
        assert answer.status == 200 and b'"stdout":"2\\n"' in answer.body, answer
        (yield request("DELETE", f"/v1/sessions/{session}")).expect(204)
        taken.append((time.perf_counter() - started) * 1000)
