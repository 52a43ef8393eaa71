"""Writes docs/benchmarks.md and the headline table from the samples on disk."""

import re
from pathlib import Path

import growth
import names
import plots
import tables
import targets
from report_text import HONEST, METHOD, SCENES
from samples import Data

BEGIN, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"


def headline(results: Path) -> str:
    return tables.headline(targets.lines(Data(results)))


def put_into(readme: Path, results: Path) -> None:
    """Replaces what stands between the marks."""
    text = readme.read_text()
    marks = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not marks.search(text):
        raise SystemExit(f"there is no {BEGIN} with an {END} after it in {readme.name}")
    table = headline(results)
    readme.write_text(marks.sub(lambda _: f"{BEGIN}\n{table}\n{END}", text, count=1))


def write(results: Path, docs: Path) -> None:
    data = Data(results)
    pictures = plots.draw_all(data, docs / "benchmarks")
    parts = [
        "# Benchmarks",
        "Written by `benches/run.py`; [benches/README.md](../benches/README.md) says how to run it.",
        tables.headline(targets.lines(data)),
        "## The machine and the run",
        machine(data),
        "## Method",
        METHOD,
    ]
    for scene, (title, text) in SCENES.items():
        parts += [f"## {title}", text, *scene_parts(data, scene, pictures)]
    parts += ["## What is honest to say", HONEST]
    (docs / "benchmarks.md").write_text("\n\n".join(part.strip() for part in parts if part.strip()) + "\n")


def machine(data: Data) -> str:
    """What the scenes ran on; a scene that ran on something else has its own row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for scene, run in data.runs.items():
        kind = "virtual machine" if run["virtual"] else "no virtual machine"
        cpu = f"{run['cpu']}, {run['cores']} cores, {run['memory_gib']:.0f} GiB, {kind}"
        quick = run["sizes"]["samples"] < 100
        program = run["program"] + (", a trial with few samples" if quick else "")
        facts = (cpu, run["kernel"], run["python"], program)
        rows.setdefault(facts, []).append(scene)
    blocks = []
    for (cpu, kernel, python, program), scenes in rows.items():
        facts = [["processor", cpu], ["kernel", f"Linux {kernel}"], ["Python of driver and rivals", python]]
        facts += [["program", program], ["scenes", ", ".join(scenes)]]
        blocks.append(tables.table(["", ""], facts, "ll"))
    loads = [
        [scene, stamp(run["began"]), load(run["began"]), load(run["ended"])]
        for scene, run in sorted(data.runs.items(), key=lambda item: item[1]["began"]["at"])
    ]
    blocks.append(tables.table(["scene", "began (UTC)", "load before", "load after"], loads, "llrr"))
    return "\n\n".join(blocks)


def stamp(moment: dict) -> str:
    return moment["at"].replace("T", " ").removesuffix("+00:00")


def load(moment: dict) -> str:
    return f"{moment['load'][0]:.2f}"


def scene_parts(data: Data, scene: str, pictures: dict[str, str]) -> list[str]:
    run = data.runs.get(scene)
    if run is None:
        return ["Not run."]
    parts = [f"Failed: {run['failure']}"] if run["failure"] else []
    parts += [f"Note: {note}." for note in run["notes"]]
    parts += scene_tables(data, scene)
    for picture in (scene, f"{scene}_http"):
        if picture in pictures:
            parts.append(f"![{SCENES[scene][0]}](benchmarks/{pictures[picture]})")
    return parts


def scene_tables(data: Data, scene: str) -> list[str]:
    if scene not in data.values and f"{scene}_p50" not in data.values:
        return []
    match scene:
        case "store":
            alone, served = (tables.grown(data, each) for each in (growth.ALONE, growth.SERVED))
            return ["Through the service:", served, "The store alone:", alone, "The filling:", tables.filled(data)]
        case "writers":
            columns = {"p50_ms": "p50", "p99_ms": "p99", "writes_a_second": "rate"}
            columns |= {"writes_a_transaction": "a transaction", "writes_a_sync": "a sync of the log"}
            columns["processors_percent"] = "processors"
            alone = {f"writers_store_{column}": title for column, title in columns.items()}
            most = {"writers_rate": "rate", "writers_no_rest_p50": "p50", "writers_no_rest_p99": "p99"}
            most["writers_busy"] = "processors"
            parts = ["Through the service, the measured caller's cells:", tables.spread(data, scene)]
            parts += ["What the others did meanwhile, and without a rest:", tables.values(data, most)]
            return [*parts, "The store alone, begin and finish of a run:", tables.values(data, alone)]
        case "new_session":
            ended = "How long the end of the session takes, which is not part of the sample:"
            return [tables.spread(data, scene, names.OURS), ended, tables.spread(data, "delete_session", names.OURS)]
        case "memory":
            first = {"memory": "held by each (PSS)", "memory_private": "of it shared with nobody"}
            first["memory_available"] = "MemAvailable fell for each by"
            shared = {"memory_part": "held by each (PSS)", "memory_shared": "held once for all (PSS)"}
            return [tables.values(data, first), "The parts, and what all sessions share:", tables.values(data, shared)]
        case "sixteen_callers":
            beside = {f"{scene}_throughput": "throughput", f"{scene}_driver": "the driver's own load"}
            return [tables.spread(data, scene, "1 caller"), tables.values(data, beside)]
        case "churn":
            return [tables.churn(data)]
        case "stdout":
            return [tables.spread(data, scene), tables.spread(data, "stdout_growth")]
        case "files":
            return [tables.spread(data, scene, "10 files")]
        case "human_eval":
            whole = {"human_eval_success": "solved", "human_eval_whole": "whole"}
            return [tables.values(data, whole), tables.spread(data, scene)]
        case "packages":
            return [tables.values(data, {"packages_first": "until ready"}), tables.spread(data, scene)]
        case "interpret":
            at_once = {"interpret_at_once": "whole batch", "interpret_at_once_ratio": "over"}
            return [tables.spread(data, scene), tables.values(data, at_once)]
        case "e2b":
            plain, tls = (tables.spread(data, benchmark, names.E2B_SDK) for benchmark in ("e2b", "e2b_tls"))
            return ["Plain HTTP:", plain, "TLS:", tls]
        case "pydantic":
            held = {"pydantic_memory": "held by each (PSS)", "pydantic_memory_private": "of it shared with nobody"}
            unused = {f"{benchmark}_unused": f"{title}, before any cell" for benchmark, title in held.items()}
            first, ready, warm = (
                tables.spread(data, benchmark, names.OURS)
                for benchmark in ("pydantic", "pydantic_ready", "pydantic_warm")
            )
            parts = ["To the answer of the first cell:", first, "Until it is ready:", ready, "A warm cell:", warm]
            return [*parts, "Memory of an idle sandbox:", tables.values(data, held | unused)]
        case _:
            return [tables.spread(data, scene, names.OURS)]
