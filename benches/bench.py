"""What a scene is given: the program, how much to measure, where samples go."""

import itertools
import sys
from dataclasses import dataclass, field
from pathlib import Path

from samples import Recorder
from service import Service

COUNTER = itertools.count()


@dataclass
class Sizes:
    """How much each scene measures."""

    samples: int
    warm_samples: int
    memory_sessions: int
    caller_rounds: int
    churn_rounds: int
    churn_seconds: float
    stdout_runs: int
    many_files_samples: int
    human_eval_passes: int
    interpret_rounds: int
    pydantic_rounds: int
    pydantic_sandboxes: int
    store_samples: int
    store_runs: list[int]
    writers_rounds: int
    writers_cells: int
    writers_seconds: float

    @classmethod
    def of(cls, samples: int) -> "Sizes":
        few = max(3, samples // 10)
        store = samples, [1_000, 10_000, 100_000, 1_000_000], 10, samples, 4.0
        return cls(samples, max(1000, 5 * samples), 200, 10, 5, 3.0, 5, max(5, samples // 4), 3, 3, few, 5, *store)

    @classmethod
    def quick(cls) -> "Sizes":
        return cls(5, 100, 200, 2, 1, 0.5, 1, 5, 1, 1, 2, 2, 20, [1_000, 10_000], 2, 50, 1.0)


@dataclass
class Bench:
    """One scene's means."""

    program: Path
    sizes: Sizes
    pool: int | None
    allow_no_pool: bool
    folder: Path
    record: Recorder
    # another build, which is measured too where that says something
    beside: Path | None = None
    notes: list[str] = field(default_factory=list)

    def service(
        self,
        pool: bool = True,
        env: dict[str, str] | None = None,
        program: Path | None = None,
        data: Path | None = None,
    ) -> Service:
        """A service of its own on a fresh folder, or on the data of another.

        Without a pool it primes nothing. `env` are settings besides.
        """
        size = self.pool if pool else 0
        service = Service(program or self.program, self.fresh("service"), size, self.allow_no_pool, env, data)
        if pool and service.provider().get("pool") is None:
            self.note("this program offers no pool: what is called interpreterd here makes every sandbox when asked")
        return service

    def fresh(self, name: str) -> Path:
        """A name for a folder that is not there yet."""
        return self.folder / f"{name}-{next(COUNTER)}"

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def compare_pythons(self, service: Service) -> None:
        """Notes it when the rivals run on another Python than the guest."""
        guest, own = service.provider().get("python"), "{}.{}.{}".format(*sys.version_info[:3])
        if guest != own:
            self.note(f"the guest is Python {guest}, the rivals are {own}: another build may be faster or slower")
