"""The headline: what was measured, beside what, and whether its target was met."""

from dataclasses import dataclass

import growth
import names
from samples import Data


@dataclass(frozen=True)
class Line:
    """One row of the headline table."""

    what: str
    ours: str
    beside: str
    target: str
    met: bool | None


def lines(data: Data) -> list[Line]:
    """All rows for which there are samples."""
    parts = (new_session, warm_exec, memory, callers, churn, stdout, files, human_eval, packages, interpret, e2b)
    parts += (pydantic, pydantic_memory, store, writers)
    return [line for part in parts for line in part(data)]


def new_session(data: Data) -> list[Line]:
    found = []
    for name, what, times, goal in (
        (names.OURS, "New session to the answer of its first cell, p50", 80, 6),
        (names.NO_POOL, "the same without a pool", 25, 16),
    ):
        if data.has("new_session", name, names.GATEWAY):
            middle = data.at("new_session", name)
            ratio = data.at("new_session", names.GATEWAY) / middle
            met = ratio >= times and middle <= goal
            found.append(Line(what, ms(middle), versus(data, names.GATEWAY, ratio), f">= {times}x, <= {goal} ms", met))
    return found


def versus(data: Data, rival: str, ratio: float, benchmark: str = "new_session") -> str:
    return f"{rival}: {ms(data.at(benchmark, rival))}, {times_over(ratio)}"


def warm_exec(data: Data) -> list[Line]:
    if not data.has("warm_exec", names.OURS, names.GATEWAY, names.GATEWAY_QUICK, names.RAW):
        return []
    middle = data.at("warm_exec", names.OURS)
    found = [Line("Warm cell, p50", ms(middle), "", "<= 1.2 ms", middle <= 1.2)]
    for rival, times in ((names.GATEWAY, 30), (names.GATEWAY_QUICK, None), (names.RAW, 4)):
        ratio = data.at("warm_exec", rival) / middle
        beside = versus(data, rival, ratio, "warm_exec")
        target, met = (f">= {times}x", ratio >= times) if times else ("", None)
        found.append(Line(f"Warm cell beside {rival}", ms(middle), beside, target, met))
    own, floor = data.at("warm_exec", names.OWN_PART), data.at("warm_exec", names.HTTP_FLOOR)
    beside = f"GET /healthz: {ms(floor)}"
    found.append(Line("The service's own part of a warm cell, p50", ms(own), beside, "<= 0.5 ms", own <= 0.5))
    return found


def memory(data: Data) -> list[Line]:
    if not data.has("memory", names.OURS, names.COLD):
        return []
    ours, cold = data.at("memory", names.OURS), data.at("memory", names.COLD)
    beside = f"cold Python, same imports: {cold:.0f} MiB, {times_over(cold / ours)}"
    return [Line("Memory of an idle session (PSS), pandas imported", f"{ours:.1f} MiB", beside, "<= 8 MiB", ours <= 8)]


def callers(data: Data) -> list[Line]:
    many = "16 callers"
    if not data.has("sixteen_callers", many):
        return []
    middle, slow = data.at("sixteen_callers", many), data.at("sixteen_callers", many, 99)
    rate = data.at("sixteen_callers_throughput", many)
    ours = f"p50 {ms(middle)}, p99 {ms(slow)}"
    beside = f"{rate:,.0f} cells/s in all"
    return [Line("Warm cells of 16 sessions at once", ours, beside, "p99 <= 10 x p50", slow <= 10 * middle)]


def churn(data: Data) -> list[Line]:
    found = []
    for name in (names.OURS, names.NO_POOL):
        rates = {
            int(contestant.rpartition(" ")[2]): data.at("churn", contestant)
            for contestant in data.values.get("churn", {})
            if contestant.startswith(f"{name}: ")
        }
        if rates:
            best = max(rates, key=rates.__getitem__)
            pool = " without a pool" if name == names.NO_POOL else ""
            what = f"Sessions made, used once and deleted{pool}"
            found.append(Line(what, f"{rates[best]:,.0f} a second", f"at {best} callers", "", None))
    return found


def stdout(data: Data) -> list[Line]:
    found = []
    for name, least in (("prints of 1 MB", 100), ("lines of 100 characters", 30)):
        if data.has("stdout", name):
            rate = data.at("stdout", name)
            found.append(Line(f"100 MB of stdout in {name}", f"{rate:.0f} MB/s", "", f">= {least} MB/s", rate >= least))
    if data.values.get("stdout_growth"):
        most = max(data.most("stdout_growth", name) for name in data.values["stdout_growth"])
        what = "Growth of the service's memory meanwhile, the most"
        found.append(Line(what, f"{most:.1f} MB", "", "< 32 MB", most < 32))
    return found


def files(data: Data) -> list[Line]:
    few, many = "1,000 files", "60,000 files"
    if not data.has("files", few, many):
        return []
    middle = data.at("files", few)
    beside = f"{many}: {ms(data.at('files', many))}"
    return [Line("Warm cell beside 1,000 files, p50", ms(middle), beside, "< 2 ms", middle < 2)]


def human_eval(data: Data) -> list[Line]:
    if not data.has("human_eval_success", names.OURS):
        return []
    solved = min(data.all("human_eval_success", names.OURS))
    beside = f"{data.at('human_eval_whole', names.OURS):.1f} s for all, 4 callers"
    return [Line("HumanEval's own solutions", f"{solved:.0f} of 164 pass", beside, "164", solved == 164)]


def packages(data: Data) -> list[Line]:
    later = "later session, asked at once"
    if not data.has("packages", later):
        return []
    middle, second = data.at("packages", later), data.all("packages", later)[0]
    first = data.at("packages_first", "first session, installs")
    beside = f"the first, which installs: {first / 1000:.1f} s; the second: {ms(second)}"
    met = middle <= 50 and second <= 50
    return [Line("Session with three packages that were asked for before, p50", ms(middle), beside, "<= 50 ms", met)]


def interpret(data: Data) -> list[Line]:
    found = []
    if data.has("interpret", names.OWN_PART, names.MODEL_FLOOR):
        own = data.at("interpret", names.OWN_PART)
        beside = f"POST to the model alone: {ms(data.at('interpret', names.MODEL_FLOOR))}"
        found.append(Line("A turn of interpret, our own part, p50", ms(own), beside, "<= 5 ms", own <= 5))
    many = "50 at once"
    if data.has("interpret_at_once_ratio", many):
        ratio, seconds = data.most("interpret_at_once_ratio", many), data.most("interpret_at_once", many)
        what = "50 interprets at once, model takes 1 s a turn"
        ours = f"{ratio:.2f} x the ideal"
        beside = f"{seconds:.2f} s of {seconds / ratio:.1f} s, the slowest batch"
        found.append(Line(what, ours, beside, "<= 1.3 x", ratio <= 1.3))
    return found


def e2b(data: Data) -> list[Line]:
    found = []
    for benchmark, what in (("e2b", "Cell at E2B (a double of it on loopback), p50"), ("e2b_tls", "the same over TLS")):
        if data.has(benchmark, names.OURS, names.E2B_SDK):
            middle, rival = data.at(benchmark, names.OURS), data.at(benchmark, names.E2B_SDK)
            more = middle - rival
            beside = f"{names.E2B_SDK}: {ms(rival)}, so {ms(abs(more))} {'more' if more > 0 else 'less'}"
            found.append(Line(what, ms(middle), beside, "<= 3 ms more", more <= 3))
    return found


def pydantic(data: Data) -> list[Line]:
    found = []
    if data.has("pydantic_ready", names.OURS, names.NO_POOL) and data.has("pydantic", names.OURS, names.UPSTREAM):
        for name, what, goal, target in (
            (names.OURS, "New session of Python in WebAssembly (Deno, Pyodide), p50", 5, "<= 5 ms"),
            (names.NO_POOL, "the same without a pool", 1500, "<= 1.5 s"),
        ):
            ready, first, rival = (
                data.at(*place)
                for place in (("pydantic_ready", name), ("pydantic", name), ("pydantic", names.UPSTREAM))
            )
            beside = f"with its first cell {ms(first)}; {names.UPSTREAM}: {ms(rival)}, {times_over(rival / first)}"
            found.append(Line(what, ms(ready), beside, target, ready <= goal))
    if data.has("pydantic_warm", names.OURS, names.UPSTREAM):
        middle, rival = data.at("pydantic_warm", names.OURS), data.at("pydantic_warm", names.UPSTREAM)
        more = middle - rival
        beside = (
            f"{names.UPSTREAM}, which keeps no state: {ms(rival)}, so {ms(abs(more))} {'more' if more > 0 else 'less'}"
        )
        found.append(Line("Warm cell in WebAssembly, p50", ms(middle), beside, "<= 8 ms", middle <= 8))
    return found


def pydantic_memory(data: Data) -> list[Line]:
    if not data.has("pydantic_memory", names.OURS, names.UPSTREAM):
        return []
    ours, rival = data.at("pydantic_memory", names.OURS), data.at("pydantic_memory", names.UPSTREAM)
    beside = f"{names.UPSTREAM}: {rival:.0f} MiB, {rival / ours:.2f}x"
    return [Line("Memory of an idle sandbox in WebAssembly (PSS)", f"{ours:.0f} MiB", beside, "", None)]


def store(data: Data) -> list[Line]:
    found = []
    alone, served = (growth.grown(data, f"{scene}_p50") for scene in (growth.ALONE, growth.SERVED))
    kinds = {
        "a page of GET /v1/runs, the slowest filter": (served, growth.is_page),
        "GET /v1/runs/{run_id}": (served, lambda operation: operation == "one run"),
        "a claim": (alone, lambda operation: operation == "claim"),
        "a begin, with a key or without": (alone, lambda operation: operation.startswith("begin")),
        "a finish, with a file or without": (alone, lambda operation: operation.startswith("finish")),
    }
    for name in names.DATABASES:
        sizes = [runs for other, runs in growth.places(served) if other == name]
        for kind, (values, wanted) in kinds.items():
            if sizes:
                ends = (growth.slowest(values, (name, runs), wanted) for runs in (sizes[0], sizes[-1]))
                (_, first), (which, last) = ends
                what = f"{name}, {sizes[-1]:,} runs: {kind}, p50"
                beside = f"at {sizes[0]:,} runs: {ms(first)}" + (f"; {which}" if growth.is_page(which) else "")
                found.append(Line(what, ms(last), beside, f"< {growth.LIMIT_MS} ms", last < growth.LIMIT_MS))
    return found


def writers(data: Data) -> list[Line]:
    found = []
    for name in names.DATABASES:
        alone = f"{name}: alone"
        for contestant in data.values.get("writers", {}):
            if contestant.startswith(f"{name}: beside"):
                slow, slow_alone = (data.at("writers", each, 99) for each in (contestant, alone))
                what = f"{name}: warm cell {contestant.partition(': ')[2]}, p99"
                rate = data.at("writers_rate", contestant)
                beside = f"alone: {ms(slow_alone)}, {slow / slow_alone:.2f}x; the 64: {rate:,.0f} cells/s"
                found.append(Line(what, ms(slow), beside, "<= 2x", slow <= 2 * slow_alone))
        one, many = (f"{name}: {who}, no rest" for who in ("1 writer", "64 writers"))
        if data.has("writers_store_writes_a_transaction", one, many):
            together = data.at("writers_store_writes_a_transaction", many)
            rate, rate_of_one = (data.at("writers_store_writes_a_second", who) for who in (many, one))
            beside = f"{rate:,.0f} writes/s; one writer: {rate_of_one:,.0f}"
            if data.has("writers_store_writes_a_sync", many):
                beside += f"; {data.at('writers_store_writes_a_sync', many):.1f} writes a sync of the log"
            what = f"{name}: 64 writers without a rest, writes a transaction"
            found.append(Line(what, f"{together:.1f}", beside, "", None))
    return found


def ms(value: float) -> str:
    return f"{digits(value)} ms"


def digits(value: float) -> str:
    """Three digits that say something, never fewer before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times_over(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 30 else f"{ratio:.0f}x"
