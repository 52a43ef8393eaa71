"""All scenes by name, in the order in which they run."""

from collections.abc import Callable

from bench import Bench

from scenes import (
    callers,
    churn,
    e2b,
    files,
    human_eval,
    interpret,
    memory,
    new_session,
    packages,
    pydantic,
    stdout,
    store,
    warm_exec,
    writers,
)

ALL: dict[str, Callable[[Bench], None]] = {
    "new_session": new_session.run,
    "warm_exec": warm_exec.run,
    "memory": memory.run,
    "sixteen_callers": callers.run,
    "churn": churn.run,
    "stdout": stdout.run,
    "files": files.run,
    "human_eval": human_eval.run,
    "packages": packages.run,
    "interpret": interpret.run,
    "e2b": e2b.run,
    "pydantic": pydantic.run,
    "store": store.run,
    "writers": writers.run,
}
