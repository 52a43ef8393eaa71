"""A store that grows to a million runs: by itself, and through the service."""

import contextlib
import datetime
import itertools
import json
import random
import time
from collections.abc import Callable

from bench import Bench
from client import Answer, encode, request
from databases import Place, places
from samples import percentile
from service import Service, exec_path, success
from store_program import StoreProgram

CODE = encode({"code": "print(1+1)"})
PAGE = 20
WARMING = 5
PERCENTS = (50, 95, 99)
# an operation that has taken so many seconds in all has been measured often enough, with so many samples at least
LONG, LEAST = 10.0, 20

KEYS = itertools.count()
# a call, and whether its answer is right
Way = tuple[Callable[[], Answer], Callable[[Answer], bool]]


def run(bench: Bench) -> None:
    program = StoreProgram(bench.fresh("program"))
    with contextlib.ExitStack() as stack:
        found = places(bench, stack)
        for runs in bench.sizes.store_runs:
            for place in found:
                alone(bench, program, place, runs)
                served(bench, place, runs)


def alone(bench: Bench, program: StoreProgram, place: Place, runs: int) -> None:
    """Fills on, and measures the store without a service."""
    options = ["--sizes", str(runs), "--samples", str(bench.sizes.store_samples)]
    rows = program.run(place.url, place.data, *options)
    for row in rows:
        for percent in PERCENTS:
            value = float(row[f"p{percent}_ms"])
            bench.record.add(f"store_p{percent}", contestant(place, runs, row["operation"]), 0, value, "ms")
    bench.record.add("store_fill", contestant(place, runs, "fill"), 0, float(rows[0]["seconds_to_fill"]), "s")


def served(bench: Bench, place: Place, runs: int) -> None:
    filled, started = place.filled(), time.perf_counter()
    with place.service() as service:
        taken = {"start of the service": [(time.perf_counter() - started) * 1000]}
        session = service.create()
        for turn in range(WARMING + bench.sizes.store_samples):
            if turn == WARMING:
                taken = {"start of the service": taken["start of the service"]}
            for name, (call, is_right) in ways(service, session, filled, turn).items():
                values = taken.setdefault(name, [])
                if sum(values) > LONG * 1000 and len(values) >= LEAST:
                    continue
                started = time.perf_counter()
                answer = call()
                values.append((time.perf_counter() - started) * 1000)
                assert is_right(answer), (name, answer)
    for name, values in taken.items():
        for percent in PERCENTS:
            value = percentile(values, percent)
            bench.record.add(f"store_http_p{percent}", contestant(place, runs, name), 0, value, "ms")


def ways(service: Service, session: str, filled: list[dict], turn: int) -> dict[str, Way]:
    """All that is asked, with what must come of it."""
    known, middle = random.Random(turn).choice(filled), filled[len(filled) // 2]
    some, none, any_number = (lambda count: count > 0), (lambda count: count == 0), (lambda count: True)
    pages = {
        "page: newest": ("", lambda count: count == PAGE),
        "page: oldest first": ("order=asc", lambda count: count == PAGE),
        "page: anywhere, by cursor": (f"after={known['run_id']}", any_number),
        "page: kind (3 %)": ("kind=interpret", some),
        "page: status (0.1 %)": ("status=cancelled", any_number),
        "page: status that no run has": ("status=running", none),
        "page: session_id": (f"session_id={known['session_id']}", some),
        "page: provider (5 %)": ("provider=e2b", some),
        "page: provider that no run has": ("provider=bedrock", none),
        "page: since the middle": (f"since={middle['created_at']}", some),
        "page: since the last run": (f"since={datetime.datetime.now(datetime.UTC).isoformat()[:19]}Z", any_number),
        "page: since the middle, oldest first": (f"since={middle['created_at']}&order=asc", some),
        "page: until the middle": (f"until={middle['created_at']}", some),
        "page: kind and status (0.08 %)": ("kind=exec&status=cancelled", any_number),
        "page: kind and status (0.003 %)": ("kind=interpret&status=cancelled", any_number),
        "page: session_id and status": (f"session_id={known['session_id']}&status=success", any_number),
    }
    found = {name: page(service, query, fits) for name, (query, fits) in pages.items()}
    one = request("GET", f"/v1/runs/{known['run_id']}")
    found["one run"] = lambda: service.client.send(one), lambda answer: answer.json()["id"] == known["run_id"]
    cell, keyed = (request("POST", exec_path(session), CODE, key=key) for key in (None, f"key-{next(KEYS)}"))
    names = {"exec": cell, "exec with a key": keyed, "exec with a key, told again": keyed}
    for name, order in names.items():
        found[name] = (lambda order=order: service.client.send(order)), is_two
    return found


def page(service: Service, query: str, fits: Callable[[int], bool]) -> Way:
    order = request("GET", f"/v1/runs?{query}" if query else "/v1/runs")
    return lambda: service.client.send(order), lambda answer: fits(len(json.loads(answer.expect(200).body)["data"]))


def is_two(answer: Answer) -> bool:
    return success(answer)["stdout"] == "2\n"


def contestant(place: Place, runs: int, operation: str) -> str:
    return f"{place.name}, {runs}: {operation}"
