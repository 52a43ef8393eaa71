"""Samples: written as CSV while a benchmark runs, read back for the report."""

import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path

import machine
import names

COLUMNS = ["benchmark", "contestant", "round", "value", "unit"]


class Recorder:
    """Takes the samples of one scene and writes them when it is through."""

    def __init__(self, folder: Path, scene: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.scene, self.rows = folder, scene, []
        self.began = machine.now()

    def add(self, benchmark: str, contestant: str, turn: int, value: float, unit: str) -> None:
        self.rows.append((benchmark, contestant, turn, f"{value:.6g}", unit))

    def save(self, bench) -> None:
        self._file().unlink(missing_ok=True)
        if self.rows:
            with self._file().open("w", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(COLUMNS)
                writer.writerows(self.rows)
        self._note(bench, None)

    def drop(self, bench, failure: str) -> None:
        """Leaves no samples of a scene that failed: half of them would look like a result."""
        self._file().unlink(missing_ok=True)
        self._note(bench, failure)

    def _file(self) -> Path:
        return self.folder / f"{self.scene}.csv"

    def _note(self, bench, failure: str | None) -> None:
        """Writes down under which conditions the scene ran."""
        runs = read_runs(self.folder)
        runs[self.scene] = {
            **machine.describe(),
            "program": machine.program(bench.program),
            "sizes": vars(bench.sizes),
            "began": self.began,
            "ended": machine.now(),
            "notes": bench.notes,
            "failure": failure,
        }
        text = json.dumps(runs, indent=2, sort_keys=True) + "\n"
        (self.folder / "runs.json").write_text(text)


def read_runs(folder: Path) -> dict[str, dict]:
    file = folder / "runs.json"
    return json.loads(file.read_text()) if file.exists() else {}


class Data:
    """All samples of a folder."""

    def __init__(self, folder: Path):
        self.values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.units: dict[str, str] = {}
        self.runs = read_runs(folder)
        for path in sorted(folder.glob("*.csv")):
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    self.values[row["benchmark"]][row["contestant"]].append(float(row["value"]))
                    self.units[row["benchmark"]] = row["unit"]
        for benchmark, contestants in self.values.items():
            ordered = sorted(contestants, key=names.place)
            self.values[benchmark] = {name: contestants[name] for name in ordered}

    def has(self, benchmark: str, *contestants: str) -> bool:
        return benchmark in self.values and all(name in self.values[benchmark] for name in contestants)

    def all(self, benchmark: str, contestant: str) -> list[float]:
        return self.values[benchmark][contestant]

    def at(self, benchmark: str, contestant: str, percent: float = 50) -> float:
        return percentile(self.values[benchmark][contestant], percent)

    def most(self, benchmark: str, contestant: str) -> float:
        return max(self.values[benchmark][contestant])

    def mean(self, benchmark: str, contestant: str) -> float:
        return statistics.fmean(self.values[benchmark][contestant])


def percentile(values: list[float], percent: float) -> float:
    """The value below which that share of the values lies, linear between neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
