"""Finds packages and all that they depend on, and puts them into the store."""

import re
import shutil
from pathlib import Path

import cdn
from requirements import Requirements
from runtime import HERE, Pip
from steps import Failure, require_sha256, say

from store import ACCEPTED, LOCK, PLATFORM, PYTHON_MINOR, Store, is_usable, normalise, read_wheel, require_usable

WHEELS_LOCK = HERE / "wheels.txt"
TARGET = ["--platform", PLATFORM, "--python-version", f"3.{PYTHON_MINOR}", "--implementation", "cp"]
DOWNLOAD = ["download", "--no-deps", "--only-binary=:all:", *TARGET, "--abi", f"cp3{PYTHON_MINOR}"]
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def check_names(names: list[str]) -> list[str]:
    for name in names:
        if not NAME.fullmatch(name):
            raise Failure(f"{name!r} is no package name; give names alone, such as numpy")
    return [normalise(name) for name in names]


class Packages:
    """Takes wheels from the user's folder, Pyodide's distribution or the package index, in this order."""

    def __init__(self, store: Store, pip: Pip, brought: Path | None):
        self.store = store
        self.pip = pip
        self.requirements = Requirements(pip.site_packages())
        self.brought = read_folder(brought) if brought else {}
        self.from_cdn: list[str] = []

    def add_defaults(self) -> None:
        """The wheels of our own lock, with its hashes."""
        self.pip.run(
            "downloading the packages",
            [*DOWNLOAD, "--require-hashes", "-r", WHEELS_LOCK, "-d", self.store.staging],
        )
        paths = sorted(self.store.staging.glob("*.whl"))
        for path in paths:
            require_usable(path)
            wheel = read_wheel(path)
            self.store.add_wheel(path, wheel, [name for name, _ in self.requirements.of(wheel)])

    def add(self, names: list[str]) -> None:
        pending = [(name, "", "") for name in names]
        while pending:
            name, specifier, parent = pending.pop(0)
            if name in self.store.entries:
                self.check_version(name, specifier, parent)
            else:
                pending += [(*one, name) for one in self.add_one(name, specifier)]
        cdn.download([self.store.known(name) for name in self.from_cdn], self.store.staging)

    def add_one(self, name: str, specifier: str) -> list[tuple[str, str]]:
        """Gives what it depends on."""
        known = self.store.known(name)
        if path := self.choose_brought(name, known):
            staged = self.store.staging / path.name
            shutil.copyfile(path, staged)
            if known and path.name == known["file_name"]:
                require_sha256(staged, known["sha256"], str(path.parent))
                return self.add_known(name)
            return self.add_file(name, staged)
        if known and self.requirements.fits(known["version"], specifier):
            self.from_cdn.append(name)
            return self.add_known(name)
        return self.add_file(name, self.from_index(name, specifier))

    def add_known(self, name: str) -> list[tuple[str, str]]:
        self.store.add_known(name)
        return [(depend, "") for depend in self.store.entries[name]["depends"]]

    def add_file(self, name: str, path: Path) -> list[tuple[str, str]]:
        wheel = read_wheel(path)
        if wheel.name != name:
            raise Failure(f"{path.name} is not {name}: it says that it is {wheel.name}")
        requires = self.requirements.of(wheel)
        self.store.add_wheel(path, wheel, [name for name, _ in requires])
        return requires

    def choose_brought(self, name: str, known: dict | None) -> Path | None:
        """Pyodide's own file before others, then the newest."""
        paths = self.brought.get(name, [])
        for path in paths:
            if known and path.name == known["file_name"]:
                return path
        if not paths:
            return None
        usable = [path for path in paths if is_usable(path.name)]
        if not usable:
            require_usable(paths[0])
        return max(usable, key=lambda path: self.requirements.version(read_wheel(path).version))

    def from_index(self, name: str, specifier: str) -> Path:
        folder = self.store.staging.with_name("download")
        shutil.rmtree(folder, ignore_errors=True)
        hint = f"\nno wheel of {name}{specifier} that WebAssembly can run ({ACCEPTED}) could be had"
        self.pip.run(f"downloading {name}", [*DOWNLOAD, "-d", folder, name + specifier], hint=hint)
        (path,) = folder.iterdir()
        require_usable(path)
        return path.rename(self.store.staging / path.name)

    def check_version(self, name: str, specifier: str, parent: str) -> None:
        """Tells only: Pyodide's own distribution does not keep to every specifier either."""
        version = self.store.entries[name]["version"]
        if not parent:
            if name in self.store.old:
                say(f"{name} {version} is there already")
        elif not self.requirements.fits(version, specifier):
            say(f"note: {parent} asks for {name}{specifier}, and the store has {version}")


def read_folder(folder: Path) -> dict[str, list[Path]]:
    """The files that the user brought, by package; a zip is a shared library of Pyodide's."""
    if not folder.is_dir():
        raise Failure(f"there is no folder {folder}")
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in (".whl", ".zip") and path.name != LOCK:
            found.setdefault(normalise(path.name.split("-")[0]), []).append(path)
    return found
