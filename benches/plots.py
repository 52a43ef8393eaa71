"""The samples as pictures."""

import math
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("svg")

import growth
import names
from matplotlib import pyplot
from matplotlib.axes import Axes
from samples import Data

COLOURS = {
    names.OURS: "#1b6ca8",
    names.AFTER_FRAME: "#144f7c",
    names.NO_POOL: "#5fa8d3",
    names.IN_SANDBOX: "#5fa8d3",
    names.OWN_PART: "#9ccbe8",
    names.GATEWAY: "#d1495b",
    names.GATEWAY_QUICK: "#e58a96",
    names.GATEWAY_IMPORTS: "#8f2d3a",
    names.RAW: "#edae49",
    names.RAW_IMPORTS: "#b97f1f",
    names.COLD: "#66707a",
    names.FORK_FLOOR: "#a8b0b8",
    names.HTTP_FLOOR: "#a8b0b8",
    names.UPSTREAM: "#d1495b",
    names.UPSTREAM_SERVED: "#e58a96",
}


def draw_all(data: Data, folder: Path) -> dict[str, str]:
    """Draws what there are samples of; gives each picture's file name by its benchmark."""
    folder.mkdir(parents=True, exist_ok=True)
    # the same samples give the same file
    matplotlib.rcParams.update({"svg.hashsalt": "interpreterd", "svg.fonttype": "none", "font.size": 10})
    drawings: dict[str, tuple[Callable[[Axes, Data], None], str]] = {
        "new_session": (lambda axes, data: shares(axes, data, "new_session"), "New session to its first answer"),
        "warm_exec": (lambda axes, data: shares(axes, data, "warm_exec"), "Warm cell"),
        "memory": (memory, "Memory of an idle session with its imports"),
        "sixteen_callers": (lambda axes, data: shares(axes, data, "sixteen_callers"), "Warm cells, callers at once"),
        "churn": (churn, "Sessions made, used once and deleted"),
        "pydantic": (lambda axes, data: shares(axes, data, "pydantic"), "Python in WebAssembly to its first answer"),
        "files": (lambda axes, data: shares(axes, data, "files"), "Warm cell in a folder of many files"),
        "store": (lambda axes, data: grown(axes, data, growth.ALONE), "The store alone, p50"),
        "store_http": (lambda axes, data: grown(axes, data, growth.SERVED), "Through the service, p50"),
        "writers": (lambda axes, data: shares(axes, data, "writers"), "Warm cell of one caller beside others"),
    }
    drawn = {}
    for benchmark, (drawing, title) in drawings.items():
        if not (data.values.get(benchmark) or data.values.get(f"{benchmark}_p50")):
            continue
        figure, axes = pyplot.subplots(figsize=(8, 3.8), layout="constrained")
        drawing(axes, data)
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        drawn[benchmark] = f"{benchmark}.svg"
        save(figure, folder / drawn[benchmark])
    return drawn


def save(figure: pyplot.Figure, file: Path) -> None:
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
    text = "\n".join(line.rstrip() for line in file.read_text().splitlines())
    file.write_text(text + "\n")


def shares(axes: Axes, data: Data, benchmark: str) -> None:
    """For each contestant the share of samples that were done by a time."""
    for name, values in data.values[benchmark].items():
        ordered = sorted(values)
        heights = [(place + 1) / len(ordered) * 100 for place in range(len(ordered))]
        axes.step(ordered, heights, where="post", label=name, color=COLOURS.get(name), linewidth=1.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"{data.units[benchmark]}, logarithmic")
    axes.set_ylabel("samples done by then, %")
    axes.grid(alpha=0.25)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)


def memory(axes: Axes, data: Data) -> None:
    held = {name: data.at("memory", name) for name in data.values["memory"]}
    ordered = sorted(held, key=held.__getitem__, reverse=True)
    bars = axes.barh(ordered, [held[name] for name in ordered], color=[COLOURS.get(name) for name in ordered])
    axes.bar_label(bars, [f"{held[name]:.1f}" for name in ordered], padding=4)
    axes.set_xlabel("MiB (PSS)")
    axes.set_xlim(0, max(held.values()) * 1.12)


def churn(axes: Axes, data: Data) -> None:
    top = 0.0
    for service in (names.OURS, names.NO_POOL):
        found = {
            int(name.rpartition(" ")[2]): data.at("churn", name)
            for name in data.values["churn"]
            if name.startswith(f"{service}: ")
        }
        if found:
            axes.plot(list(found), list(found.values()), marker="o", label=service, color=COLOURS[service])
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(found), [str(count) for count in found])
            top = max(top, *found.values())
    axes.set_ylim(0, math.ceil(top * 1.1))
    axes.set_xlabel("callers at once")
    axes.set_ylabel("lives a second")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)


def grown(axes: Axes, data: Data, scene: str) -> None:
    """Each kind of operation over the number of runs: of pages with a filter the slowest, whichever that is."""
    found = growth.grown(data, f"{scene}_p50")
    places = growth.places(found)
    kinds: dict[str, Callable[[str], bool]] = {
        "page, newest": lambda operation: operation == "page: newest",
        "page, the slowest filter": growth.is_page,
        "one run": lambda operation: operation == "one run",
        "claim": lambda operation: operation == "claim",
        "begin or finish, the slower": growth.is_write,
        "exec": lambda operation: operation == "exec",
    }
    colours = dict(zip(kinds, ("#5fa8d3", "#1b6ca8", "#edae49", "#66707a", "#d1495b", "#8f2d3a"), strict=True))
    for name, style in zip(names.DATABASES, ("-", "--"), strict=True):
        sizes = [runs for other, runs in places if other == name]
        for kind, wanted in kinds.items():
            if sizes and any(wanted(operation) for operation in found):
                values = [growth.slowest(found, (name, runs), wanted)[1] for runs in sizes]
                label = f"{name}: {kind}"
                axes.plot(sizes, values, style, marker="o", markersize=4, label=label, color=colours[kind])
    axes.axhline(growth.LIMIT_MS, color="#a8b0b8", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("runs, logarithmic")
    axes.set_ylabel("ms, logarithmic")
    axes.grid(alpha=0.25)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
