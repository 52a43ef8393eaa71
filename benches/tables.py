"""Samples as Markdown tables."""

import growth
import names
from samples import Data
from targets import Line, digits, times_over


def headline(found: list[Line]) -> str:
    rows = [[line.what, line.ours, line.beside, line.target, verdict(line.met)] for line in found]
    return table(["what", "interpreterd", "beside", "target", "met"], rows, "lllll")


def verdict(met: bool | None) -> str:
    return {True: "yes", False: "**no**", None: ""}[met]


def spread(data: Data, benchmark: str, reference: str | None = None) -> str:
    """A row for each contestant: how many samples, and where they lie."""
    contestants = data.values[benchmark]
    head = ["contestant", "samples", *(f"{column}, {data.units[benchmark]}" for column in ("p50", "p95", "p99", "max"))]
    base = data.at(benchmark, reference) if reference in contestants else None
    if base:
        head.append(f"p50 over that of {reference}")
    rows = []
    for name in contestants:
        places = [data.at(benchmark, name, percent) for percent in (50, 95, 99, 100)]
        row = [name, str(len(contestants[name])), *(digits(value) for value in places)]
        rows.append(row + ([times_over_or_share(places[0] / base)] if base else []))
    return table(head, rows, "l" + "r" * (len(head) - 1))


def times_over_or_share(ratio: float) -> str:
    return times_over(ratio) if ratio >= 1 else f"{ratio:.2f}x"


def values(data: Data, benchmarks: dict[str, str]) -> str:
    """A row for each contestant, a column for each benchmark: the medians."""
    present = {benchmark: title for benchmark, title in benchmarks.items() if benchmark in data.values}
    contestants = list(dict.fromkeys(name for benchmark in present for name in data.values[benchmark]))
    rows = [
        [name, *(digits(data.at(benchmark, name)) if data.has(benchmark, name) else "" for benchmark in present)]
        for name in contestants
    ]
    head = ["", *(f"{title}, {data.units[benchmark]}" for benchmark, title in present.items())]
    return table(head, rows, "l" + "r" * len(present))


def churn(data: Data) -> str:
    """A row for each number of callers, the services side by side."""
    callers = sorted({int(name.rpartition(" ")[2]) for name in data.values["churn"]})
    rows = []
    for count in callers:
        row = [str(count)]
        for service in (names.OURS, names.NO_POOL):
            contestant = f"{service}: {count}"
            for benchmark in ("churn", "churn_life_p50", "churn_life_p99"):
                row.append(digits(data.at(benchmark, contestant)) if data.has(benchmark, contestant) else "")
        rows.append(row)
    titles = [f"{pool}: {what}" for pool in ("pool", "no pool") for what in ("lives/s", "p50, ms", "p99, ms")]
    return table(["callers", *titles], rows, "r" * 7)


def grown(data: Data, scene: str) -> str:
    """A row for each operation, a column for each number of runs in each database."""
    middles, slow = (growth.grown(data, f"{scene}_p{percent}") for percent in (50, 99))
    places = growth.places(middles)
    most = {name: max(runs for other, runs in places if other == name) for name, _ in places}
    head = ["p50, ms", *(f"{name}, {runs:,} runs" for name, runs in places)]
    head += [f"p99 there, {name}" for name in most]
    rows = []
    for operation, values in middles.items():
        row = [operation, *(digits(values[place]) if place in values else "" for place in places)]
        # one start of the service has no percentiles
        ends = "" if operation.startswith("start") else None
        rows.append(row + [digits(slow[operation][place]) if ends is None else ends for place in most.items()])
    return table(head, rows, "l" + "r" * (len(head) - 1))


def filled(data: Data) -> str:
    """How long each step of the filling took."""
    found = growth.grown(data, "store_fill")["fill"]
    rows = [[name, f"{runs:,}", digits(found[name, runs])] for name, runs in growth.places({"fill": found})]
    return table(["", "runs", "seconds since the step before"], rows, "lrr")


def table(head: list[str], rows: list[list[str]], sides: str) -> str:
    rule = ["---:" if side == "r" else "---" for side in sides]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])
