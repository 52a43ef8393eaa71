"""Python in WebAssembly: the service with its own server, with the genuine mcp-run-python, and that one alone."""

import contextlib
import json
import os
import random
import time
from collections.abc import Callable
from functools import partial

import names
import processes
from bench import Bench
from client import encode
from service import Service, exec_path, is_full, success
from upstream import ITS_WORD, OUR_WORD, NotInstalled, Raw, Upstream

CODE = "1+1"
VALUE = 2
BLOCK = 10
WARMING = 20
POOL = 2
# how often each is asked in a round: a start of mcp-run-python takes seconds
TIMES = {names.OURS: 3, names.NO_POOL: 3, names.UPSTREAM_SERVED: 1, names.UPSTREAM: 1}
# so that the end of one contestant's sample does not lie in the next one's
PAUSE_SECONDS = 0.2
POOL_SECONDS = 120
# what the service warns of when it makes a sandbox by a slow way
COLD = "without a snapshot"

# entries of the file of settings
POOLED, FRESH, SERVED = "pooled", "fresh", "upstream"
# a sample gives the times until it was ready and until the first answer
Sample = Callable[[], tuple[float, float]]


def run(bench: Bench) -> None:
    try:
        upstream = Upstream(bench.fresh("upstream"))
    except NotInstalled as why:
        bench.note(f"skipped: {why}")
        return
    bench.note(upstream.versions())
    new_sessions(bench, upstream)
    with started(bench, upstream, pool=0) as service:
        warm(bench, upstream, service)
        memory(bench, upstream, service)


def started(bench: Bench, upstream: Upstream, pool: int) -> Service:
    """A service with three entries, the pool of one of them full."""
    folder = bench.fresh("settings")
    folder.mkdir()
    command = [f"command = {json.dumps(upstream.command)}", f"folder = {json.dumps(str(upstream.folder))}"]
    environ = ", ".join(f"{name} = {json.dumps(value)}" for name, value in upstream.environ("served").items())
    entries = {POOLED: [f"pool = {pool}"], FRESH: [], SERVED: [*command, f"env = {{{environ}}}"]}
    lines = [[f"[providers.{name}]", 'kind = "pydantic"', *entry, ""] for name, entry in entries.items()]
    file = folder / "settings.toml"
    file.write_text("\n".join(line for entry in lines for line in entry))
    service = bench.service(pool=False, env={"INTERPRETERD_CONFIG": str(file), "INTERPRETERD_LOG": "warn"})
    # it has tried each entry before it answers; a snapshot of another version's is not used
    if COLD in service.errors.read_text():
        service.stop()
        raise RuntimeError(
            "the guest is of another version: run `interpreterd guest install --provider pydantic` again"
        )
    return service


def new_sessions(bench: Bench, upstream: Upstream) -> None:
    with started(bench, upstream, POOL) as service:
        contestants: dict[str, Sample] = {
            names.OURS: lambda: pooled(service),
            names.NO_POOL: lambda: served(service, FRESH),
            names.UPSTREAM_SERVED: lambda: served(service, SERVED),
            names.UPSTREAM: lambda: raw(upstream),
        }
        order = [name for name, times in TIMES.items() for _ in range(times)]
        fill(service)
        # the first round finds cold caches; it is not kept
        for turn in range(-1, bench.sizes.pydantic_rounds):
            for name in random.Random(turn).sample(order, len(order)):
                time.sleep(PAUSE_SECONDS)
                ready, first = contestants[name]()
                if turn < 0:
                    continue
                # its Python is loaded by its first cell
                waited = names.UPSTREAM_HANDSHAKE if name == names.UPSTREAM else name
                bench.record.add("pydantic_ready", waited, turn, ready, "ms")
                bench.record.add("pydantic", name, turn, first, "ms")


def pooled(service: Service) -> tuple[float, float]:
    taken = served(service, POOLED)
    # what refills the pool must not run in the next contestant's sample
    fill(service)
    return taken


def served(service: Service, entry: str) -> tuple[float, float]:
    started = time.perf_counter()
    session = service.create(provider=entry)
    ready = time.perf_counter()
    execution = service.exec(session, CODE)
    answered = time.perf_counter()
    assert execution["text"] == str(VALUE), execution
    service.delete(session)
    return (ready - started) * 1000, (answered - started) * 1000


def raw(upstream: Upstream) -> tuple[float, float]:
    started = time.perf_counter()
    with contextlib.closing(upstream.start()) as server:
        ready = time.perf_counter()
        value = server.run(CODE)
        answered = time.perf_counter()
        assert value == VALUE, value
    return (ready - started) * 1000, (answered - started) * 1000


def fill(service: Service) -> None:
    """Waits until the pool is full; asks seldom, since it is processors that this waits for."""
    deadline = time.monotonic() + POOL_SECONDS
    while not is_full(service.provider(POOLED)["pool"]):
        assert time.monotonic() < deadline, "the pool is not full"
        time.sleep(0.05)


def warm(bench: Bench, upstream: Upstream, service: Service) -> None:
    """Each in a session of its own that has run cells before."""
    with contextlib.closing(upstream.start()) as server:
        sessions = {name: service.create(provider=entry) for name, entry in entries().items()}
        blocks = [partial(served_cells, bench, service, session, name) for name, session in sessions.items()]
        blocks.append(partial(raw_cells, bench, server))
        for _ in range(WARMING):
            server.run(CODE)
            for session in sessions.values():
                service.exec(session, CODE)
        for turn in range(bench.sizes.warm_samples // BLOCK):
            # in another order each time, so that none comes always after the same
            for block in random.Random(turn).sample(blocks, len(blocks)):
                block(turn)
        for session in sessions.values():
            service.delete(session)


def entries() -> dict[str, str]:
    return {names.OURS: FRESH, names.UPSTREAM_SERVED: SERVED}


def served_cells(bench: Bench, service: Service, session: str, name: str, turn: int) -> None:
    path, body = exec_path(session), encode({"code": CODE})
    for _ in range(BLOCK):
        started = time.perf_counter()
        answer = service.client.call("POST", path, body)
        whole = (time.perf_counter() - started) * 1000
        execution = success(answer)
        assert execution["text"] == str(VALUE), execution
        bench.record.add("pydantic_warm", name, turn, whole, "ms")
        if name == names.OURS:
            inside = execution["duration_ms"]
            bench.record.add("pydantic_warm", names.IN_SANDBOX, turn, inside, "ms")
            bench.record.add("pydantic_warm", names.OWN_PART, turn, whole - inside, "ms")


def raw_cells(bench: Bench, server: Raw, turn: int) -> None:
    for _ in range(BLOCK):
        started = time.perf_counter()
        value = server.run(CODE)
        taken = (time.perf_counter() - started) * 1000
        assert value == VALUE, value
        bench.record.add("pydantic_warm", names.UPSTREAM, turn, taken, "ms")


def memory(bench: Bench, upstream: Upstream, service: Service) -> None:
    """So many of one contestant at a time, before their first cell and after it."""
    if os.geteuid() != 0:
        bench.note("memory is not measured: other users' can be read by root alone")
        return
    for name, entry in entries().items():
        held_served(bench, upstream, service, name, entry)
    with contextlib.ExitStack() as stack:
        count = bench.sizes.pydantic_sandboxes
        servers = [stack.enter_context(contextlib.closing(upstream.start())) for _ in range(count)]
        pids = [server.pid() for server in servers]
        held(bench, upstream, names.UPSTREAM, pids, "_unused")
        assert [server.run(CODE) for server in servers] == [VALUE] * count
        held(bench, upstream, names.UPSTREAM, pids)


def held_served(bench: Bench, upstream: Upstream, service: Service, name: str, entry: str) -> None:
    def pids() -> list[int]:
        word = ITS_WORD if entry == SERVED else OUR_WORD
        return processes.running(service.process.pid, upstream.deno, word)

    # what was deleted before is gone a moment later
    deadline = time.monotonic() + 10
    while pids():
        assert time.monotonic() < deadline, "a sandbox that was deleted is still there"
        time.sleep(0.05)
    sessions = [service.create(provider=entry) for _ in range(bench.sizes.pydantic_sandboxes)]
    found = pids()
    assert len(found) == len(sessions), found
    held(bench, upstream, name, found, "_unused")
    for session in sessions:
        assert service.exec(session, CODE)["text"] == str(VALUE)
    held(bench, upstream, name, found)
    for session in sessions:
        service.delete(session)


def held(bench: Bench, upstream: Upstream, name: str, pids: list[int], when: str = "") -> None:
    """Each process by itself, once they rest."""
    time.sleep(1)
    if processes.count_of(upstream.deno) > len(pids):
        bench.note(
            "others ran the same Deno meanwhile, with whom its pages are shared: PSS says too little, by some MiB"
        )
    for what, read in (("", processes.pss_bytes), ("_private", processes.private_bytes)):
        for place, pid in enumerate(pids):
            bench.record.add(f"pydantic_memory{what}{when}", name, place, read([pid]) / 2**20, "MiB")
