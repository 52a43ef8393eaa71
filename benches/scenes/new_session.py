"""From asking for a session until the answer of its first cell."""

import contextlib
import random
import time
from collections.abc import Callable

import names
from bench import Bench
from floor import IMPORTS, Floor
from rivals import Gateway, RawKernel, cold_python
from service import Service

CODE = "print(1+1)"
# so that the end of one contestant's sample does not lie in the next one's
PAUSE_SECONDS = 0.02

# A sample gives the time until the first answer, and the time of the end where it was measured.
Sample = Callable[[], tuple[float, float | None]]


def run(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        contestants = start(bench, stack)
        # the first round finds cold caches; it is not kept
        for turn in range(-1, bench.sizes.samples):
            order = list(contestants)
            random.Random(turn).shuffle(order)
            for name in order:
                time.sleep(PAUSE_SECONDS)
                first, ended = contestants[name]()
                if turn < 0:
                    continue
                bench.record.add("new_session", name, turn, first, "ms")
                if ended is not None:
                    bench.record.add("delete_session", name, turn, ended, "ms")


def start(bench: Bench, stack: contextlib.ExitStack) -> dict[str, Sample]:
    pooled = stack.enter_context(bench.service())
    unpooled = stack.enter_context(bench.service(pool=False))
    gateway = stack.enter_context(contextlib.closing(Gateway(bench.fresh("gateway"))))
    floor = stack.enter_context(contextlib.closing(Floor()))
    bench.compare_pythons(pooled)
    return {
        names.OURS: lambda: served(pooled),
        names.NO_POOL: lambda: served(unpooled),
        names.GATEWAY: lambda: by_gateway(gateway, CODE),
        names.GATEWAY_IMPORTS: lambda: by_gateway(gateway, f"import {IMPORTS}\n{CODE}"),
        names.RAW: raw,
        names.COLD: cold,
        names.FORK_FLOOR: lambda: (floor.sample_ms(), None),
    }


def served(service: Service) -> tuple[float, float]:
    service.settle()
    started = time.perf_counter()
    session = service.create()
    said = service.exec(session, CODE)["stdout"]
    answered = time.perf_counter()
    assert said == "2\n", said
    service.delete(session)
    ended = time.perf_counter()
    # what refills the pool must not run in the next contestant's sample
    service.settle()
    return (answered - started) * 1000, (ended - answered) * 1000


def by_gateway(gateway: Gateway, code: str) -> tuple[float, float]:
    started = time.perf_counter()
    kernel = gateway.start()
    said = kernel.run(code)
    answered = time.perf_counter()
    assert said == "2\n", said
    kernel.close()
    return (answered - started) * 1000, (time.perf_counter() - answered) * 1000


def raw() -> tuple[float, float]:
    started = time.perf_counter()
    kernel = RawKernel()
    value = kernel.first("1+1")
    answered = time.perf_counter()
    assert value == "2", value
    kernel.close()
    return (answered - started) * 1000, (time.perf_counter() - answered) * 1000


def cold() -> tuple[float, None]:
    started = time.perf_counter()
    cold_python()
    return (time.perf_counter() - started) * 1000, None
