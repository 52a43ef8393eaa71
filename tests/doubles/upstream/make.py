"""Makes the genuine mcp-run-python ready to run without a network: `make.py FOLDER`.

Nothing of its own code is changed. Deno and pip are those of the Python that runs this.
Tests start it by FOLDER/command.json.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DENO = Path(sys.prefix) / "bin/deno"
SERVER = "mcp_run_python"
# what Pyodide 314 is, for pip
PYTHON = ["--python-version", "3.14", "--implementation", "cp", "--abi", "cp314"]
PLATFORM = ["--platform", "pyemscripten_2026_0_wasm32", "--only-binary", ":all:"]
GIVEN = ("deno.json", "deno.lock", "parse_args.ts")
DENO_RUN = ["run", "--cached-only", "--no-prompt", "--allow-read=./node_modules"]


def main(folder):
    os.umask(0o022)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as aside:
        wheels, cache = Path(aside, "wheels"), Path(aside, "deno")
        download(wheels)
        take_server(wheels, folder)
        install_modules(folder, cache)
        # only now: till then Deno's own copies are the same files as those of the folder
        shutil.rmtree(cache)
        add_wheels(wheels, folder / "node_modules/pyodide")
    readable_by_all(folder)
    (folder / "command.json").write_text(json.dumps(commands(folder), indent=2) + "\n")


def download(wheels):
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download", "--no-deps"]
    subprocess.run(
        [*pip, "--require-hashes", *PLATFORM, *PYTHON, "-d", wheels, "-r", HERE / "packages.txt"], check=True
    )


def take_server(wheels, folder):
    (wheel,) = wheels.glob(f"{SERVER}-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if re.fullmatch(rf"{SERVER}/deno/src/\w+\.ts", name):
                target = folder / name.removeprefix(f"{SERVER}/deno/")
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(packed.read(name))
    wheel.unlink()


def install_modules(folder, cache):
    for name in GIVEN:
        shutil.copyfile(HERE / name, folder / name)
    environment = {**os.environ, "DENO_DIR": str(cache), "DENO_NO_UPDATE_CHECK": "1"}
    subprocess.run([DENO, "install", "--quiet", "--frozen"], cwd=folder, env=environment, check=True)


def add_wheels(wheels, pyodide):
    """Pyodide takes packages from its own folder where its lock file says so, from its CDN else."""
    place = pyodide / "pyodide-lock.json"
    lock = json.loads(place.read_text())
    for wheel in sorted(wheels.glob("*.whl")):
        name, entry = described(wheel)
        known = name if name in lock["packages"] else name.replace("-", "_")
        lock["packages"].setdefault(known, {"name": known}).update(entry)
        shutil.copyfile(wheel, pyodide / wheel.name)
    place.unlink()  # it may be one file with another's
    place.write_text(json.dumps(lock))


def described(wheel):
    """A wheel's name, and its entry in Pyodide's lock file."""
    distribution, version = wheel.name.split("-")[:2]
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        wanted = re.findall(r"^Requires-Dist: ([\w.-]+)[^;\n]*$", packed.read(about).decode(), re.MULTILINE)
    tops = {name.split("/")[0] for name in names}
    entry = {
        "version": version,
        "file_name": wheel.name,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "depends": [normal(name) for name in wanted],
        "imports": sorted(top.removesuffix(".py") for top in tops if not top.endswith((".dist-info", ".data"))),
        "install_dir": "site",
        "package_type": "package",
        "unvendored_tests": False,
    }
    return normal(distribution), entry


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def readable_by_all(folder):
    for place in [folder, *folder.rglob("*")]:
        if not place.is_symlink():
            place.chmod(place.stat().st_mode | (0o555 if place.is_dir() else 0o444))


def commands(folder):
    """How tests start it. A copy of the doubles' folder has other paths: they begin with `folder`."""
    net = "--allow-net=[::]:{port},0.0.0.0:{port}"  # where it listens: it cannot be told to do so at one address
    return {
        "folder": str(folder.parent),
        "command": str(DENO),
        "args": [*DENO_RUN, "src/main.ts", "stdio", "--return-mode=json"],
        "http_args": [*DENO_RUN, net, "src/main.ts", "streamable_http", "--port={port}", "--return-mode=json"],
        "cwd": str(folder),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
