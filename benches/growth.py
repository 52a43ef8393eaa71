"""How operations of the store grew with the number of runs, out of the samples."""

import re

import names
from samples import Data

LIMIT_MS = 5
CONTESTANT = re.compile(r"(\w+), (\d+): (.+)")
# what a benchmark of the store alone is called, and what one through the service is
ALONE, SERVED = "store", "store_http"

# operation, then database and number of runs
Grown = dict[str, dict[tuple[str, int], float]]


def grown(data: Data, benchmark: str) -> Grown:
    """What there is of a benchmark."""
    found: Grown = {}
    for contestant in data.values.get(benchmark, {}):
        name, runs, operation = CONTESTANT.fullmatch(contestant).groups()
        found.setdefault(operation, {})[name, int(runs)] = data.at(benchmark, contestant)
    return found


def places(found: Grown) -> list[tuple[str, int]]:
    """The databases, each with its numbers of runs."""
    return sorted({place for values in found.values() for place in values}, key=lambda place: order(*place))


def order(name: str, runs: int) -> tuple[int, int]:
    return names.DATABASES.index(name), runs


def is_page(operation: str) -> bool:
    return operation.startswith("page")


def is_write(operation: str) -> bool:
    return operation.startswith(("begin", "finish"))


def slowest(found: Grown, place: tuple[str, int], wanted) -> tuple[str, float]:
    """The operation of that kind that is slowest there."""
    values = {name: values[place] for name, values in found.items() if wanted(name) and place in values}
    name = max(values, key=values.__getitem__)
    return name, values[name]
