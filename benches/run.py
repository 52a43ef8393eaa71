#!/usr/bin/env python3
"""Measures interpreterd beside others in one run, and writes what came of it."""

import argparse
import gc
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import environment

HERE = Path(__file__).resolve().parent


def main() -> int:
    options = arguments()
    # The driver needs matplotlib and the rivals' clients: it goes on as the Python that has them.
    environment.go_on_inside(options.program, options.python)

    import report

    failed = [] if options.report_only else measure(options)
    report.write(options.results, options.docs)
    print(report.headline(options.results))
    if options.readme:
        report.put_into(options.readme, options.results)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, help="the release build of interpreterd")
    parser.add_argument("--beside", type=Path, metavar="PROGRAM", help="another build, for the scene e2b alone")
    parser.add_argument("--samples", type=int, default=200, help="samples of each contestant (200)")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,...", help="these scenes alone")
    parser.add_argument("--quick", action="store_true", help="a minute's trial; its figures say little")
    parser.add_argument("--report-only", action="store_true", help="write the report anew from the samples on disk")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="put the headline table between this file's marks")
    parser.add_argument("--store-runs", type=numbers, metavar="N,...", help="how many runs the store is measured at")
    parser.add_argument("--pool", type=int, help="size of the pool; unset: the program's own default")
    parser.add_argument("--allow-no-pool", action="store_true", help="measure a program that offers no pool")
    parser.add_argument("--python", type=Path, help="Python for the rivals; unset: one of the guest's version")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where samples go (benches/results)")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="where the report goes (docs)")
    options = parser.parse_args()
    if not options.program and not options.report_only:
        parser.error("--program is needed to measure")
    if options.program:
        options.program = options.program.resolve(strict=True)
    if options.beside:
        options.beside = options.beside.resolve(strict=True)
    # a trial must not overwrite the figures of a real run
    results, docs = HERE / "results", HERE.parent / "docs"
    if options.quick:
        results, docs = environment.cache() / "quick" / "results", environment.cache() / "quick" / "docs"
        print(f"quick: samples and report go to {results.parent}")
    options.results = options.results or results
    options.docs = options.docs or docs
    return options


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def measure(options: argparse.Namespace) -> list[str]:
    """Runs the scenes one after the other; gives the names of those that failed."""
    import scenes
    from bench import Bench, Sizes
    from samples import Recorder

    unknown = set(options.only or []) - set(scenes.ALL)
    if unknown:
        raise SystemExit(f"no such scene: {', '.join(sorted(unknown))}; there are: {', '.join(scenes.ALL)}")
    sizes = Sizes.quick() if options.quick else Sizes.of(options.samples)
    sizes.store_runs = options.store_runs or sizes.store_runs
    failed = []
    with tempfile.TemporaryDirectory(prefix="interpreterd-bench-") as folder:
        os.chmod(folder, 0o755)
        set_rivals_folders(Path(folder))
        for name in options.only or scenes.ALL:
            recorder = Recorder(options.results, name)
            pool = (options.pool, options.allow_no_pool)
            bench = Bench(options.program, sizes, *pool, Path(folder), recorder, options.beside)
            if not run_scene(bench, name, scenes.ALL[name]):
                failed.append(name)
    return failed


def run_scene(bench, name: str, run) -> bool:
    print(f"{name} ...", flush=True)
    started = time.monotonic()
    # a collection in the driver would be somebody's slow sample
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        run(bench)
    except Exception as error:
        traceback.print_exc()
        bench.record.drop(bench, f"{type(error).__name__}: {error}".splitlines()[0])
        return False
    finally:
        gc.enable()
    bench.record.save(bench)
    for note in bench.notes:
        print(f"{name}: {note}")
    print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    return True


def set_rivals_folders(folder: Path) -> None:
    """Keeps the rivals from reading and filling the caller's own configuration."""
    for setting in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        place = folder / setting.lower()
        place.mkdir()
        os.environ[setting] = str(place)


if __name__ == "__main__":
    raise SystemExit(main())
