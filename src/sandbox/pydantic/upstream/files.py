"""Files in and out, a piece at a time."""

import base64
import hashlib
import os
import stat

from _interpreterd import place
from _interpreterd.place import Refused

PIECE = 1 << 20


def write(told):
    """Adds a piece to a file of ours, at its end. What follows that place is of an attempt before."""
    path, content = place.beside(told["name"]), base64.b64decode(told["content"])
    with open(path, "ab") as file:
        size = file.tell()
        if size < told["first"]:
            raise Refused("cut")
        file.truncate(told["first"])
        file.write(content)
    return {"bytes": told["first"] + len(content)}


def put(told):
    """Puts a file of ours in place: whole, or not at all."""
    ready = place.beside(told["name"])
    try:
        if told.get("content") is not None:
            write({**told, "first": 0})
        if place.look(ready) is None or digest(ready) != told["sha256"]:
            raise Refused("cut")
        path = place.parent(told["path"], make=True)
        check(place.look(path), told["condition"])
        os.replace(ready, path)
        return {"entry": entry(place.look(path))}
    finally:
        place.remove(ready)


def digest(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
    return found.hexdigest()


def read(told):
    """A part of a file, `most` bytes of it at most."""
    path = place.parent(told["path"])
    about = place.look(path)
    if about is None:
        raise Refused("absent")
    if not stat.S_ISREG(about.st_mode):
        raise Refused("not_a_file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        first, last = told["first"], told["last"]
        if told["from_end"] is not None:
            first = max(size - told["from_end"], 0)
        last = size if last is None else min(last, size)
        file.seek(first)
        content = file.read(max(min(last - first, told["most"]), 0))
    return {"entry": entry(about), "first": first, "content": base64.b64encode(content).decode()}


def remove(told):
    path = place.parent(told["path"])
    about = place.look(path)
    if about is None:
        raise Refused("absent")
    check(about, told["condition"])
    os.unlink(path)
    return {}


def forget(told):
    """An upload that will not be ended."""
    place.remove(place.beside(told["name"]))
    return {}


def listing(told):
    return place.listing()


def check(about, condition):
    """Whether a file may be replaced or removed as it is now."""
    if about is not None and not stat.S_ISREG(about.st_mode):
        raise Refused("not_a_file")
    kind, tags = condition
    tag = None if about is None else f"{about.st_size:x}-{about.st_mtime_ns:x}"
    among = tag is not None and (not tags or tag in tags)
    if (kind == "matches" and not among) or (kind == "differs" and among):
        raise Refused("condition")


def entry(about):
    return [about.st_size, about.st_mtime_ns]


WORK = {"write": write, "put": put, "read": read, "remove": remove, "forget": forget, "list": listing}
