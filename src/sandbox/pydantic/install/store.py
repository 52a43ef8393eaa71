"""The package store: a folder of wheels, and the lock by which Pyodide finds them."""

import json
import os
import re
import shutil
import zipfile
from email.parser import BytesHeaderParser
from itertools import product
from pathlib import Path
from typing import NamedTuple

from steps import Failure, sha256

LOCK = "pyodide-lock.json"
PLATFORM = "pyemscripten_2026_0_wasm32"
PYTHON_MINOR = 14
ACCEPTED = f"none-any, or {PLATFORM} for CPython 3.{PYTHON_MINOR}"


class Wheel(NamedTuple):
    """What a wheel says of itself."""

    name: str
    version: str
    requires: list[str]
    imports: list[str]


def normalise(name: str) -> str:
    """https://packaging.python.org/en/latest/specifications/name-normalization/"""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_usable(file_name: str) -> bool:
    """Whether one of a wheel's tags fits Python in WebAssembly: what pip takes for its own host does not."""
    parts = file_name.removesuffix(".whl").split("-")
    if not file_name.endswith(".whl") or len(parts) not in (5, 6):
        return False
    return any(fits(*tag) for tag in product(*(part.split(".") for part in parts[-3:])))


def fits(python: str, abi: str, platform: str) -> bool:
    found = re.fullmatch(r"(py|cp)3(\d*)", python)
    if not found:
        return False
    minor = int(found[2] or 0)
    if abi == "none":
        exact = found[1] == "cp" and minor != PYTHON_MINOR
        return platform in ("any", PLATFORM) and minor <= PYTHON_MINOR and not exact
    if platform != PLATFORM or found[1] != "cp":
        return False
    return minor <= PYTHON_MINOR if abi == "abi3" else (minor, abi) == (PYTHON_MINOR, f"cp3{PYTHON_MINOR}")


def require_usable(path: Path) -> None:
    if not is_usable(path.name):
        raise Failure(f"{path.name} cannot run in WebAssembly: the tags of its name must be {ACCEPTED}")


def read_wheel(path: Path) -> Wheel:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            metadata = next(name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            headers = BytesHeaderParser().parsebytes(archive.read(metadata))
    except (zipfile.BadZipFile, StopIteration, OSError, EOFError):
        raise Failure(f"{path} is no wheel that can be read") from None
    if not headers["Name"] or not headers["Version"]:
        raise Failure(f"{path} does not say which package it is")
    requires = [str(line) for line in headers.get_all("Requires-Dist", [])]
    return Wheel(normalise(headers["Name"]), headers["Version"], requires, top_level(names))


def top_level(names: list[str]) -> list[str]:
    """The modules that a wheel's files can be imported as."""
    modules = set()
    for name in names:
        first, _, rest = name.partition("/")
        if not name.endswith((".py", ".so")) or first.endswith((".dist-info", ".data")):
            continue
        module = first if rest else first.split(".")[0]
        if module.isidentifier() and module not in ("test", "tests", "docs", "examples"):
            modules.add(module)
    return sorted(modules)


class Store:
    """A store in the making: a copy that replaces the old one only when it is whole."""

    def __init__(self, folder: Path, staging: Path, pyodide: Path):
        self.folder = folder
        self.staging = staging
        self.distribution = json.loads((pyodide / LOCK).read_text())
        self.entries: dict[str, dict] = {}
        staging.mkdir()
        if (folder / LOCK).is_file():
            self.entries = json.loads((folder / LOCK).read_text())["packages"]
        for entry in self.entries.values():
            link_or_copy(folder / entry["file_name"], staging / entry["file_name"])
        self.old = set(self.entries)

    def known(self, name: str) -> dict | None:
        """What Pyodide's own lock says of a package."""
        return self.distribution["packages"].get(name)

    def add_known(self, name: str) -> None:
        """Takes a package of Pyodide's lock, whose file stands in the staging folder."""
        entry = self.known(name)
        self.entries[name] = {**entry, "depends": sorted({normalise(one) for one in entry["depends"]})}

    def add_wheel(self, path: Path, wheel: Wheel, depends: list[str]) -> None:
        """Takes a wheel that stands in the staging folder."""
        self.entries[wheel.name] = {
            "name": wheel.name,
            "version": wheel.version,
            "file_name": path.name,
            "sha256": sha256(path),
            "depends": sorted(set(depends)),
            "imports": wheel.imports,
            "install_dir": "site",
            "package_type": "package",
            "unvendored_tests": False,
        }

    def new(self) -> dict[str, dict]:
        return {name: entry for name, entry in self.entries.items() if name not in self.old}

    def versions(self) -> dict[str, str]:
        return {name: self.entries[name]["version"] for name in sorted(self.entries)}

    def write_lock(self) -> None:
        """Only what is there: an import of anything else then fails at once and asks no network."""
        entries = dict(sorted(self.entries.items()))
        for entry in entries.values():
            entry["depends"] = [name for name in entry["depends"] if name in entries]
        lock = {**self.distribution, "packages": entries}
        (self.staging / LOCK).write_text(json.dumps(lock, indent=1) + "\n")

    def publish(self) -> None:
        """The files first, the lock that names them last."""
        self.folder.mkdir(exist_ok=True)
        for entry in self.new().values():
            os.replace(self.staging / entry["file_name"], self.folder / entry["file_name"])
        os.replace(self.staging / LOCK, self.folder / LOCK)


def link_or_copy(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)
