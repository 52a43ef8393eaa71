"""Sixty-four that write at once: the store by itself, and the warm cell of one caller beside theirs."""

import contextlib
import random
import time
from dataclasses import dataclass

import load
import machine
from bench import Bench
from client import encode, request
from databases import Place, places
from samples import percentile
from service import Service, exec_path, success
from steady import Steady
from store_program import StoreProgram

CODE = "print(1+1)"
MANY = 64
SHARES = (0.1, 0.4)
WARMING = 10
# the measured caller's rest, in the middle: callers that never rest are measured besides
REST_SECONDS = 0.01
# the store is no empty one
RUNS = 10_000
COLUMNS = {
    "p50_ms": "ms",
    "p95_ms": "ms",
    "p99_ms": "ms",
    "writes_a_second": "writes/s",
    "writes_a_transaction": "writes",
    "writes_a_sync": "writes",
    "processors_percent": "%",
}


@dataclass
class Desk:
    """A service that runs, with the measured session and those of the others."""

    name: str
    service: Service
    session: str
    others: list[str]
    # what the others can do without a rest, in cells a second
    most: float = 0.0


def run(bench: Bench) -> None:
    program = StoreProgram(bench.fresh("program"))
    with contextlib.ExitStack() as stack:
        found = places(bench, stack)
        for place in found:
            alone(bench, program, place)
        desks = [desk(place, stack) for place in found]
        for turn in range(bench.sizes.writers_rounds):
            for each in desks:
                no_rest(bench, each, turn)
                measured(bench, each, f"{each.name}: alone", 0.0, turn)
                for share in SHARES:
                    name = f"{each.name}: beside {MANY} at {share * 100:.0f} % of the most"
                    measured(bench, each, name, share, turn)


def alone(bench: Bench, program: StoreProgram, place: Place) -> None:
    """One writer and many on the store without a service."""
    sizes = bench.sizes
    options = {"--writers": MANY, "--sizes": RUNS, "--seconds": sizes.writers_seconds, "--rounds": sizes.writers_rounds}
    options["--shares"] = ",".join(str(share) for share in SHARES)
    words = [str(word) for option in options.items() for word in option]
    for row in program.run(place.url, place.data, *words):
        who = "1 writer" if row["writers"] == "1" else f"{row['writers']} writers"
        name = f"{place.name}: {who}, {row['load']}"
        for column, unit in COLUMNS.items():
            if row[column]:
                bench.record.add(f"writers_store_{column}", name, 0, float(row[column]), unit)


def desk(place: Place, stack: contextlib.ExitStack) -> Desk:
    service = stack.enter_context(place.service())
    session, *others = (service.create() for _ in range(1 + MANY))
    for each in (session, *others):
        for _ in range(WARMING):
            service.exec(each, CODE)
    return Desk(place.name, service, session, others)


def no_rest(bench: Bench, desk: Desk, turn: int) -> None:
    """All others ask again as soon as they are answered: what they can do at most."""
    taken: list[float] = []
    until = time.perf_counter() + bench.sizes.writers_seconds / 2
    drive = load.drive(desk.service.address, [restless(session, until, taken) for session in desk.others])
    rate = len(taken) / drive.seconds
    desk.most = desk.most or rate
    name = f"{desk.name}: {MANY} without a rest"
    bench.record.add("writers_rate", name, turn, rate, "cells/s")
    for percent in (50, 99):
        bench.record.add(f"writers_no_rest_p{percent}", name, turn, percentile(taken, percent), "ms")


def restless(session: str, until: float, taken: list[float]) -> load.Caller:
    order = request("POST", exec_path(session), encode({"code": CODE}))
    while time.perf_counter() < until:
        started = time.perf_counter()
        answer = yield order
        taken.append((time.perf_counter() - started) * 1000)
        assert answer.status == 200 and b'"stdout":"2\\n"' in answer.body, answer


def measured(bench: Bench, desk: Desk, name: str, share: float, turn: int) -> None:
    """Warm cells of one caller, who rests, beside others at a share of what they can do at most."""
    beside = Steady(desk.service.address, desk.others, CODE, desk.most * share) if share else None
    time.sleep(0.3)
    order = request("POST", exec_path(desk.session), encode({"code": CODE}))
    dice = random.Random(turn)
    busy, whole = machine.busy_ticks()
    for _ in range(bench.sizes.writers_cells):
        time.sleep(dice.expovariate(1 / REST_SECONDS))
        started = time.perf_counter()
        answer = desk.service.client.send(order)
        taken = (time.perf_counter() - started) * 1000
        assert success(answer)["stdout"] == "2\n", answer
        bench.record.add("writers", name, turn, taken, "ms")
    later_busy, later = machine.busy_ticks()
    bench.record.add("writers_busy", name, turn, 100 * (later_busy - busy) / max(1, later - whole), "%")
    if beside:
        bench.record.add("writers_rate", name, turn, beside.close(), "cells/s")
