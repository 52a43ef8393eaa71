"""Installs Python in WebAssembly for the provider `pydantic`: Deno, Pyodide, packages, snapshot."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # -I leaves it out

from packages import Packages, check_names, read_folder
from runtime import DENO, PYODIDE, Pip, install_deno, install_pyodide, start_deno
from steps import Failure, say, sha256
from trial import Server

from store import Store

ABOUT = "about.json"
WORK = ".work-"


def main() -> int:
    options = read_options()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # the running step is ended with us
    os.umask(0o022)  # root's may be stricter than the sandbox's user can live with
    try:
        work = prepare(options)
        try:
            work_on(options)(options, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
    except OSError as error:
        print(f"error: cannot use {error.filename or options.target}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
    else:
        return 0
    return 1


def work_on(options: argparse.Namespace):
    return add if options.add else remake_snapshot if options.snapshot else install


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="install.py", description=__doc__)
    parser.add_argument("--target", type=Path, required=True, metavar="DIR", help="where to install")
    parser.add_argument("--server", type=Path, required=True, metavar="DIR", help="the folder of server.mjs")
    parser.add_argument("--packages", nargs="+", default=[], metavar="NAME", help="more packages for the store")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="files to take packages from, before any network")
    parser.add_argument("--add", action="store_true", help="add packages to what is installed")
    parser.add_argument("--snapshot", action="store_true", help="make the snapshot of what is installed anew")
    return parser.parse_args()


def prepare(options: argparse.Namespace) -> Path:
    """Checks what can be checked before anything is fetched, and gives an empty folder to work in."""
    options.target, options.server = options.target.resolve(), options.server.resolve()
    if options.wheels:
        options.wheels = options.wheels.resolve()
    options.packages = wanted(options)
    for folder in (options.target, options.server):
        if "," in str(folder):
            raise Failure(f"{folder} has a comma in its name, by which Deno separates folders")
    if not (options.server / "server.mjs").is_file():
        raise Failure(f"there is no server.mjs in {options.server}")
    installed = (options.target / ABOUT).is_file()
    if (options.add or options.snapshot) and not installed:
        raise Failure(f"nothing is installed in {options.target} that could be added to")
    if options.add and not options.packages:
        raise Failure("name the packages to add with --packages, or bring them with --wheels")
    if installed and not options.add and not options.snapshot:
        raise Failure(f"{options.target} holds an installation already; packages are added to it with --add")
    options.target.mkdir(parents=True, exist_ok=True)
    for old in options.target.glob(f"{WORK}*"):
        shutil.rmtree(old, ignore_errors=True)  # of one that was killed, whose pip may be writing yet
    return Path(tempfile.mkdtemp(prefix=WORK, dir=options.target))


def wanted(options: argparse.Namespace) -> list[str]:
    """The packages that were named; else whatever the user brought."""
    if options.packages or not options.wheels:
        return check_names(options.packages)
    names = list(read_folder(options.wheels))
    if not names:
        raise Failure(f"there are no wheels in {options.wheels}")
    return names


def install(options: argparse.Namespace, work: Path) -> None:
    target = options.target
    shutil.rmtree(target / "packages", ignore_errors=True)  # of an installation that was ended
    say(f"1/5 installing Deno {DENO} (about 42 MB to download the first time)")
    pip = Pip(work / "venv")
    deno = install_deno(pip, target)
    say(f"2/5 installing Pyodide {PYODIDE} (about 7 MB)")
    pyodide = install_pyodide(deno, work, target)
    say("3/5 installing the packages (about 16 MB)" + "".join(f", {name}" for name in options.packages))
    store = Store(target / "packages", work / "packages", pyodide)
    packages = Packages(store, pip, options.wheels)
    packages.add_defaults()
    packages.add(options.packages)
    store.write_lock()
    say("4/5 making the snapshot")
    server = Server(deno, options.server, pyodide, work)
    snapshot = target / "snapshot.bin"
    server.make_snapshot(snapshot)
    say("5/5 trying the packages")
    finish(store, server, snapshot, target)
    shutil.rmtree(work)
    open_to_all(target)
    write_json(target / ABOUT, about(store, snapshot))


def add(options: argparse.Namespace, work: Path) -> None:
    target = options.target
    deno, pyodide, snapshot = target / "bin/deno", target / "pyodide", target / "snapshot.bin"
    installed = json.loads((target / ABOUT).read_text()).get("pyodide")
    if installed != PYODIDE:
        raise Failure(f"{target} holds Pyodide {installed} and not {PYODIDE}: install anew")
    start_deno(deno, work / "deno")
    say("1/2 fetching " + ", ".join(options.packages))
    store = Store(target / "packages", work / "packages", pyodide)
    packages = Packages(store, Pip(work / "venv"), options.wheels)
    packages.add(options.packages)
    if not store.new():
        return
    store.write_lock()
    say("2/2 trying the packages")
    finish(store, Server(deno, options.server, pyodide, work), snapshot, target)
    open_to_all(target / "packages")


def remake_snapshot(options: argparse.Namespace, work: Path) -> None:
    """The server is another one than that of the snapshot that is there."""
    target = options.target
    deno, pyodide, snapshot = target / "bin/deno", target / "pyodide", target / "snapshot.bin"
    say("1/2 making the snapshot")
    server = Server(deno, options.server, pyodide, work)
    server.make_snapshot(snapshot)
    say("2/2 trying it")
    server.try_packages(snapshot, target / "packages", {})
    open_to_all(target)
    store = Store(target / "packages", work / "packages", pyodide)
    write_json(target / ABOUT, about(store, snapshot))


def finish(store: Store, server: Server, snapshot: Path, target: Path) -> None:
    """What cannot be imported does not get into the store."""
    found = server.try_packages(snapshot, store.staging, store.new())
    say(", ".join(f"{name} {version}" for name, version in found.items()))
    open_to_all(store.staging)
    store.publish()
    write_json(target / "packages.json", store.versions())


def about(store: Store, snapshot: Path) -> dict:
    info = store.distribution["info"]
    return {
        "deno": DENO,
        "pyodide": PYODIDE,
        "python": info["python"],
        "abi": info["abi_version"],
        "snapshot_bytes": snapshot.stat().st_size,
        "snapshot_sha256": sha256(snapshot),
    }


def write_json(path: Path, value: dict) -> None:
    """Replaced by rename, as a server may be reading it."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(partial, path)


def open_to_all(folder: Path) -> None:
    """The sandbox's user reads what root has installed."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o644))


if __name__ == "__main__":
    sys.exit(main())
