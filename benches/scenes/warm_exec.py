"""A cell in a session that has run cells before."""

import contextlib
import time
from collections.abc import Callable

import names
from bench import Bench
from client import encode
from rivals import Gateway, RawKernel
from service import Service, exec_path, success

CODE = "print(1+1)"
BLOCK = 20
WARMING = 50


def run(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(bench.service())
        gateway = stack.enter_context(contextlib.closing(Gateway(bench.fresh("gateway"))))
        by_gateway = stack.enter_context(contextlib.closing(gateway.start()))
        by_gateway_quick = stack.enter_context(contextlib.closing(gateway.start(quick_acks=True)))
        raw = stack.enter_context(contextlib.closing(RawKernel()))
        raw.first("1+1")
        session = service.create()
        service.settle()
        bench.compare_pythons(service)
        blocks: list[Callable[[int], None]] = [
            lambda turn: ours(bench, service, session, turn),
            lambda turn: http_floor(bench, service, turn),
            lambda turn: rival(bench, names.GATEWAY, by_gateway.run, turn),
            lambda turn: rival(bench, names.GATEWAY_QUICK, by_gateway_quick.run, turn),
            lambda turn: rival(bench, names.RAW, raw.run, turn),
        ]
        for _ in range(WARMING):
            service.exec(session, CODE)
            by_gateway.run(CODE)
            by_gateway_quick.run(CODE)
            raw.run(CODE)
        for turn in range(bench.sizes.warm_samples // BLOCK):
            # each comes after each of the others, not always after the same
            for place in range(len(blocks)):
                blocks[(turn + place) % len(blocks)](turn)


def ours(bench: Bench, service: Service, session: str, turn: int) -> None:
    path, body = exec_path(session), encode({"code": CODE})
    for _ in range(BLOCK):
        started = time.perf_counter()
        answer = service.client.call("POST", path, body)
        whole = (time.perf_counter() - started) * 1000
        execution = success(answer)
        assert execution["stdout"] == "2\n", execution
        inside = execution["duration_ms"]
        bench.record.add("warm_exec", names.OURS, turn, whole, "ms")
        bench.record.add("warm_exec", names.IN_SANDBOX, turn, inside, "ms")
        bench.record.add("warm_exec", names.OWN_PART, turn, whole - inside, "ms")


def http_floor(bench: Bench, service: Service, turn: int) -> None:
    for _ in range(BLOCK):
        started = time.perf_counter()
        answer = service.client.call("GET", "/healthz")
        taken = (time.perf_counter() - started) * 1000
        answer.expect(200)
        bench.record.add("warm_exec", names.HTTP_FLOOR, turn, taken, "ms")


def rival(bench: Bench, name: str, cell: Callable[[str], str], turn: int) -> None:
    for _ in range(BLOCK):
        started = time.perf_counter()
        said = cell(CODE)
        taken = (time.perf_counter() - started) * 1000
        assert said == "2\n", said
        bench.record.add("warm_exec", name, turn, taken, "ms")
