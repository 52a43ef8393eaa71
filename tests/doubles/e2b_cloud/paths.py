"""Paths and users as envd understands them."""

import os

HOMES = {"user": "/home/user", "root": "/root"}


class UnknownUser(Exception):
    """Only `user` and `root` exist."""


class BadPath(Exception):
    """A path that cannot be resolved."""


def home(name):
    if (name or "user") not in HOMES:
        raise UnknownUser(f"error looking up user '{name}': user: unknown user {name}")
    return HOMES[name or "user"]


def resolve(path, home):
    """The absolute path; relative ones start at the user's home."""
    if "\0" in path:
        raise BadPath("path contains a null byte")
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    elif path.startswith("~"):
        raise BadPath("cannot expand user-specific home dir")
    return os.path.normpath(os.path.join(home, path))
