"""The packages of the store: imports load them, and errors tell of them."""

import importlib
import json
import re
import sys
import types

from _interpreterd.finishing import wait
from pyodide.ffi import can_run_sync

SEEN = 40  # names of packages in a sentence
INSTALLS = re.compile(r"^\s*[!%]\s*(?:\S*python\S*\s+-m\s+)?(?:pip|conda|uv|micropip)\b", re.MULTILINE)


class Store:
    """The packages that can be had here."""

    packages = ()
    imports = types.MappingProxyType({})  # from the name that programs import to the package
    load = None


class Finder:
    """Comes after all others: what nobody has may stand in the store. The worker loads beforehand what a cell names."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        package = Store.imports.pop(name, None)
        if package is None or not can_run_sync():
            return None
        wait(Store.load(package))
        importlib.invalidate_caches()
        return importlib.machinery.PathFinder.find_spec(name, path)


def open_store(told, load):
    Store.imports, Store.load = json.loads(told), load
    Store.packages = sorted(set(Store.imports.values()))
    sys.meta_path.append(Finder)


def sentence(name=None):
    if name in sys.stdlib_module_names:
        return "This part of Python's library is not in this sandbox."
    names = ", ".join(Store.packages[:SEEN]) + (", ..." if len(Store.packages) > SEEN else "")
    held = f"the store has {names}, which an import loads by itself" if names else "the store is empty"
    return f"Packages cannot be fetched here; {held}."


def with_hint(told, error, code):
    """Adds to what is told of an error a sentence that helps, if there is one."""
    absent = (
        isinstance(error, ModuleNotFoundError) or type(error).__name__ == "ZoneInfoNotFoundError"
    )  # it wants tzdata
    if absent or (isinstance(error, SyntaxError) and INSTALLS.search(code)):
        for part in ("message", "traceback"):
            told[part] += f". {sentence(getattr(error, 'name', None))}"
    return told
