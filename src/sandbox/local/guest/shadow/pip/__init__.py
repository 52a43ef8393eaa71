"""Stands before the real pip in a session: installing is refused in one sentence, the rest is handed on."""

import importlib.machinery
import importlib.metadata
import os
import sys

NO_INSTALL = (
    "packages cannot be installed from inside a session: name them in the `packages` field of the request that makes it"
)
REFUSED = {"download", "install", "lock", "uninstall", "wheel"}
QUIET = {"-q", "--quiet", "-qq", "-U", "--upgrade", "--user"}

_own = os.path.dirname(__path__[0])
_real = importlib.machinery.PathFinder.find_spec("pip", [folder for folder in sys.path if folder != _own])
if _real is not None:  # pip._internal and the like are the real ones
    __path__ += _real.submodule_search_locations
    __version__ = importlib.metadata.version("pip")


def main(args=None):
    """The pip command line. Gives its exit code."""
    args = sys.argv[1:] if args is None else list(args)
    command, rest = split(args)
    if command in REFUSED and not (command == "install" and rest and all(map(is_there, rest))):
        print(NO_INSTALL, file=sys.stderr)
        return 1
    from pip._internal.cli.main import main as real

    return real([arg for arg in args if arg not in ("-U", "--upgrade")])


def split(args):
    """The command and what it is about; options that change nothing here are left out."""
    words = [arg for arg in args if arg not in QUIET]
    command = next((word for word in words if not word.startswith("-")), None)
    return command, words[words.index(command) + 1 :] if command else []


def is_there(wanted):
    """Whether a requirement is met: `pip install pandas` stands at the top of many a program."""
    from pip._vendor.packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(wanted)
        version = importlib.metadata.version(requirement.name)
    except (InvalidRequirement, importlib.metadata.PackageNotFoundError):
        return False
    return requirement.specifier.contains(version, prereleases=True)
