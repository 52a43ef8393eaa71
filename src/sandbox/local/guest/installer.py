"""Installs packages in a room of their own: wheels alone, by the guest's pip, away from the service.

`install` is called in a cell and prints one line of JSON: what was installed, or why it was not.
What the guest has already stays as it is and is not installed again.
"""

import json
import os
import re
import subprocess
import sys

# a wheel may need source code at a URL, which `--only-binary` lets through: nothing is ever built here
NOTHING_BUILT = """
import sys
from pip._internal.cli.main import main
from pip._internal.distributions.sdist import SourceDistribution
from pip._internal.exceptions import InstallationError

def refuse(distribution, *_, **__):
    raise InstallationError(f"source code is not built: {distribution.req.name}")

SourceDistribution.prepare_distribution_metadata = refuse
sys.exit(main())
"""
OPTIONS = ["--no-input", "--disable-pip-version-check", "--no-color", "--retries=2"]
PIP = [sys.executable, "-I", "-c", NOTHING_BUILT, *OPTIONS]
INSTALL = ["install", "--progress-bar=off", "--only-binary=:all:"]
FEW_WORDS = 400
NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")


class NotInstalled(Exception):
    """Why the packages are not there, in words that the service knows."""

    def __init__(self, why, **more):
        super().__init__(why)
        self.told = {"why": why, **more}


def install(requirements, guest, folder, inside, most_bytes):
    """Puts `requirements` and what they need beyond `guest` into `folder`; it will be seen at `inside`."""
    try:
        wanted = resolve(requirements, guest)
        os.mkdir(folder)
        if wanted:
            told = pip(*INSTALL, "--no-deps", "--no-compile", "--target", folder, *wanted)
            if told is not None:
                raise failure(told)
        check_size(folder, most_bytes)
        compile_all(folder, inside)
        print(json.dumps({"installed": wanted}))
    except NotInstalled as error:
        print(json.dumps(error.told))


def resolve(requirements, guest):
    """What is to be installed, as name==version each."""
    constraints, report = os.path.abspath(".constraints"), os.path.abspath(".report")
    with open(constraints, "w", encoding="utf-8") as file:
        file.writelines(f"{name}=={version}\n" for name, version in guest.items())
    told = pip(*INSTALL, "--dry-run", "-c", constraints, "--report", report, *requirements)
    if told is not None:
        raise failure(told)
    with open(report, encoding="utf-8") as file:
        found = [package["metadata"] for package in json.load(file)["install"]]
    return sorted(f"{package['name']}=={package['version']}" for package in found)


def pip(*arguments):
    """What pip said, or None when it did what it should."""
    environ = {name: value for name, value in os.environ.items() if name != "PIP_NO_INDEX"}
    command = [*PIP, *arguments]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return None if done.returncode == 0 else done.stdout.decode(errors="replace")


def failure(told):
    """Reads pip's own words: it has no others."""
    if any(words in told for words in NO_ROOM):
        return NotInstalled("too_large")
    source = re.search(r"source code is not built: (\S+)", told)
    if source is not None:
        return NotInstalled("no_wheel", name=source[1])
    missing = re.search(r"satisfies the requirement (\S+).*?\(from versions: ([^)]*)\)", told)
    if missing is None:
        return conflict(told)
    requirement, versions = missing.groups()
    if versions != "none":
        return NotInstalled("no_version", requirement=requirement, versions=few(versions))
    unreachable = re.search(r"connection broken by (.*)|Could not fetch URL (.*)", told)
    if unreachable is not None:
        return NotInstalled("unreachable", words=few(unreachable[1] or unreachable[2]))
    name = re.match(r"[A-Za-z0-9._-]+", requirement).group()
    # asks for source code too, and builds none of it
    exists = pip("index", "versions", "--pre", name) is None
    return NotInstalled("no_wheel" if exists else "no_such", name=name)


def conflict(told):
    if "conflicting dependencies" not in told and "ResolutionImpossible" not in told:
        errors = [line.removeprefix("ERROR: ") for line in told.splitlines() if line.startswith("ERROR: ")]
        last = told.strip().rpartition("\n")[2]
        return NotInstalled("failed", words=few(last if errors == ["Exception:"] else "; ".join(errors) or last))
    lines = told.partition("The conflict is caused by:")[2].partition("\n\n")[0].splitlines()
    return NotInstalled("conflict", words=few("; ".join(line.strip() for line in lines if line.strip())))


def few(words):
    return words if len(words) <= FEW_WORDS else f"...{words[-FEW_WORDS:]}"


def check_size(folder, most_bytes):
    size = sum(os.lstat(os.path.join(top, name)).st_size for top, _, names in os.walk(folder) for name in names)
    if size > most_bytes:
        raise NotInstalled("too_large")


def compile_all(folder, inside):
    """Bytecode that needs no look at its source: the packages are read-only where they are used."""
    options = ["-q", "-q", "--invalidation-mode", "unchecked-hash", "-s", os.path.abspath(folder), "-p", inside]
    compiled = [sys.executable, "-I", "-m", "compileall", *options, folder]
    subprocess.run(compiled, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
