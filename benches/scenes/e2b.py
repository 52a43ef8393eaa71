"""A cell at E2B: by the service, by E2B's own SDK, and by the least that it takes; plain and over TLS."""

import contextlib
import json
import random
import time
from collections.abc import Callable
from functools import partial

import machine
import names
from bench import Bench
from client import encode
from double import Certificate, Double
from service import Service, exec_path, success
from ways_to_e2b import Bare, Sdk, sdk_trusts, value_of

CODE = "1 + 1"
VALUE = "2"
# a connection that is kept for two seconds must not get old while the others have their turns
BLOCK = 5
WARMING = 20

# a block of samples: times them, checks their answers, and records them for a round
Block = Callable[[int], None]
# a call, and whether its answer is right
Way = tuple[Callable[[], object], Callable[[object], bool]]


def run(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        certificate = Certificate(bench.fresh("certificate"))
        doubles = {
            name: stack.enter_context(contextlib.closing(Double(bench.fresh("double"), shown)))
            for name, shown in {"e2b": None, "e2b_tls": certificate}.items()
        }
        with sdk_trusts(certificate):
            sdks = {name: stack.enter_context(contextlib.closing(Sdk(double))) for name, double in doubles.items()}
        blocks = [
            block
            for name, double in doubles.items()
            for block in [*services(bench, stack, name, double), *others(bench, stack, name, double, sdks[name])]
        ]
        for turn in range(max(1, bench.sizes.samples // BLOCK)):
            # in another order each time, so that none comes always after the same
            for block in random.Random(turn).sample(blocks, len(blocks)):
                block(turn)


def services(bench: Bench, stack: contextlib.ExitStack, benchmark: str, double: Double) -> list[Block]:
    """The service, and another build of it beside where one is given."""
    programs = {names.OURS: bench.program}
    if bench.beside:
        programs[names.OTHER_BUILD] = bench.beside
        bench.note(f"the other build is {machine.program(bench.beside)}")
    blocks = []
    for name, program in programs.items():
        service = stack.enter_context(bench.service(pool=False, env=double.settings(), program=program))
        session = service.create()
        for _ in range(WARMING):
            service.exec(session, CODE)
        blocks.append(partial(ours, bench, benchmark, name, service, session))
    return blocks


def others(bench: Bench, stack: contextlib.ExitStack, benchmark: str, double: Double, sdk: Sdk) -> list[Block]:
    """Each way with what its answer must be."""
    bare = stack.enter_context(contextlib.closing(Bare(double)))
    ways: dict[str, Way] = {
        names.E2B_SDK: (lambda: sdk.run(CODE), lambda value: value == VALUE),
        names.E2B_FLOOR: (lambda: bare.execute(CODE), lambda said: value_of(said) == VALUE),
        names.E2B_FLOOR_NEW: (lambda: bare.execute_anew(CODE), lambda said: value_of(said) == VALUE),
        names.E2B_LISTING_FLOOR: (bare.list_files, lambda said: not json.loads(said).get("entries")),
    }
    for call, is_right in ways.values():
        for _ in range(WARMING):
            assert is_right(call())
    return [partial(other, bench, benchmark, name, way) for name, way in ways.items()]


def ours(bench: Bench, benchmark: str, name: str, service: Service, session: str, turn: int) -> None:
    path, body = exec_path(session), encode({"code": CODE})
    for _ in range(BLOCK):
        started = time.perf_counter()
        answer = service.client.call("POST", path, body)
        whole = (time.perf_counter() - started) * 1000
        execution = success(answer)
        assert execution["text"] == VALUE, execution
        bench.record.add(benchmark, name, turn, whole, "ms")
        if name == names.OURS:
            inside = execution["duration_ms"]
            bench.record.add(benchmark, names.IN_E2B, turn, inside, "ms")
            bench.record.add(benchmark, names.OWN_PART, turn, whole - inside, "ms")


def other(bench: Bench, benchmark: str, name: str, way: Way, turn: int) -> None:
    call, is_right = way
    for _ in range(BLOCK):
        started = time.perf_counter()
        said = call()
        taken = (time.perf_counter() - started) * 1000
        assert is_right(said), said
        bench.record.add(benchmark, name, turn, taken, "ms")
