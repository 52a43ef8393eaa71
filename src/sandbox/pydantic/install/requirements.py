"""What a wheel requires, read for Python in WebAssembly."""

import importlib
import sys
from pathlib import Path

from store import PYTHON_MINOR, Wheel, normalise

# https://packaging.python.org/en/latest/specifications/dependency-specifiers/#environment-markers
ENVIRONMENT = {
    "implementation_name": "cpython",
    "implementation_version": f"3.{PYTHON_MINOR}.2",
    "os_name": "posix",
    "platform_machine": "wasm32",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_system": "Emscripten",
    "platform_version": "",
    "python_full_version": f"3.{PYTHON_MINOR}.2",
    "python_version": f"3.{PYTHON_MINOR}",
    "sys_platform": "emscripten",
    "extra": "",
}


class Requirements:
    """Reads requirements with the `packaging` that pip carries; pip itself reads them for its own host."""

    def __init__(self, site_packages: Path):
        sys.path.insert(0, str(site_packages))
        self.parse = importlib.import_module("pip._vendor.packaging.requirements").Requirement
        self.version = importlib.import_module("pip._vendor.packaging.version").Version

    def of(self, wheel: Wheel) -> list[tuple[str, str]]:
        """Names and version specifiers; extras are nobody's requirement."""
        found = [self.parse(line) for line in wheel.requires]
        return [
            (normalise(one.name), str(one.specifier))
            for one in found
            if one.marker is None or one.marker.evaluate(ENVIRONMENT)
        ]

    def fits(self, version: str, specifier: str) -> bool:
        return self.parse(f"any{specifier}").specifier.contains(version, prereleases=True)
