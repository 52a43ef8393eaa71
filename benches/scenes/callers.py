"""Warm cells of sixteen sessions at once, and of one."""

import time

import load
from bench import Bench
from client import encode, request
from service import Service, exec_path

CODE = "print(1+1)"
MANY = 16
WARMING = 10


def run(bench: Bench) -> None:
    rounds = bench.sizes.caller_rounds
    each = max(10, bench.sizes.samples // rounds)
    with bench.service() as service:
        sessions = [service.create() for _ in range(MANY)]
        for session in sessions:
            for _ in range(WARMING):
                service.exec(session, CODE)
        service.settle()
        for turn in range(rounds):
            # the lone caller asks as often as all others together, so that both rest on as many samples
            block(bench, service, sessions[:1], each * MANY, turn)
            block(bench, service, sessions, each, turn)


def block(bench: Bench, service: Service, sessions: list[str], each: int, turn: int) -> None:
    name = "1 caller" if len(sessions) == 1 else f"{len(sessions)} callers"
    taken: list[float] = []
    drive = load.drive(service.address, [caller(session, each, taken) for session in sessions])
    for value in taken:
        bench.record.add("sixteen_callers", name, turn, value, "ms")
    bench.record.add("sixteen_callers_throughput", name, turn, len(taken) / drive.seconds, "cells/s")
    bench.record.add("sixteen_callers_driver", name, turn, drive.driver_share * 100, "% of a core")


def caller(session: str, each: int, taken: list[float]) -> load.Caller:
    order = request("POST", exec_path(session), encode({"code": CODE}))
    for _ in range(each):
        started = time.perf_counter()
        answer = yield order
        taken.append((time.perf_counter() - started) * 1000)
        assert answer.status == 200 and b'"stdout":"2\\n"' in answer.body, answer
