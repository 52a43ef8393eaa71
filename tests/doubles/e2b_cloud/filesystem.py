"""filesystem.Filesystem of envd: looks at files, moves and removes them, watches directories."""

import asyncio
import contextlib
import datetime
import grp
import os
import pwd
import re
import shutil
import stat

from .files import XATTR
from .paths import resolve
from .sandbox import timestamp
from .watch import Watcher

EMPTY = (0, "0", "", "FILE_TYPE_UNSPECIFIED")
OF_THE_USER = re.compile(r"^/(home/user|files|tmp)(/|$)")


def entry(sandbox, path):
    """What envd says of a file, without the zero values that proto3 JSON leaves out."""
    real = sandbox.box.real(path, follow=False)
    own = os.lstat(real)
    target = own
    if stat.S_ISLNK(own.st_mode):
        target = None
        with contextlib.suppress(OSError):
            target = os.stat(sandbox.box.real(path))
    modified = datetime.datetime.fromtimestamp(own.st_mtime, datetime.UTC)
    found = {
        "name": os.path.basename(path),
        "type": kind_of(target),
        "path": path,
        "size": str(own.st_size),
        "mode": stat.S_IMODE(target.st_mode) & 0o777 if target else 0,
        "permissions": permissions(own),
        **owners(own, path),
        "modifiedTime": timestamp(modified),
        "metadata": metadata(real),
    }
    if stat.S_ISLNK(own.st_mode):
        found["symlinkTarget"] = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(real)))
        found["isSymlink"] = True
    return {name: value for name, value in found.items() if value and value not in EMPTY}


def kind_of(status):
    if status is None:
        return "FILE_TYPE_UNSPECIFIED"
    if stat.S_ISDIR(status.st_mode):
        return "FILE_TYPE_DIRECTORY"
    return "FILE_TYPE_FILE" if stat.S_ISREG(status.st_mode) else "FILE_TYPE_UNSPECIFIED"


def permissions(status):
    """As Go writes them."""
    text = stat.filemode(status.st_mode)
    return "L" + text[1:] if text[0] == "l" else text


def owners(status, path):
    """There is no account `user` here: what we made there counts as its own."""
    if status.st_uid == os.geteuid() and OF_THE_USER.match(path):
        return {"owner": "user", "group": "user"}
    owner, group = str(status.st_uid), str(status.st_gid)
    with contextlib.suppress(KeyError):
        owner = pwd.getpwuid(status.st_uid).pw_name
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(status.st_gid).gr_name
    return {"owner": owner, "group": group}


def metadata(real):
    with contextlib.suppress(OSError):
        names = [name for name in os.listxattr(real, follow_symlinks=False) if name.startswith(XATTR)]
        return {name.removeprefix(XATTR): os.getxattr(real, name).decode() for name in names}
    return {}


def path_of(message, name, directory):
    if not isinstance(message.get(name, ""), str):
        raise ValueError(f"{name} must be a string")
    return resolve(message.get(name, ""), directory)


def look_up(sandbox, path, kind="file"):
    try:
        return entry(sandbox, path)
    except (FileNotFoundError, NotADirectoryError):
        raise LookupError(f"{kind} not found: lstat {path}: no such file or directory") from None


def stat_file(sandbox, message, directory):
    return {"entry": look_up(sandbox, path_of(message, "path", directory))}


def list_directory(sandbox, message, directory):
    path, depth = path_of(message, "path", directory), message.get("depth") or 1
    look_up(sandbox, path, "path")
    if not os.path.isdir(sandbox.box.real(path)):
        raise ValueError(f"path is not a directory: {path}")
    found = list(walk(sandbox, path, depth))
    return {"entries": found} if found else {}


def walk(sandbox, path, depth):
    for name in sorted(os.listdir(sandbox.box.real(path))):
        child = os.path.join(path, name)
        with contextlib.suppress(FileNotFoundError):
            yield entry(sandbox, child)
            real = sandbox.box.real(child, follow=False)
            if depth > 1 and os.path.isdir(real) and not os.path.islink(real):
                yield from walk(sandbox, child, depth - 1)


def make_directory(sandbox, message, directory):
    path = path_of(message, "path", directory)
    real = sandbox.box.real(path)
    if os.path.isdir(real):
        raise FileExistsError(f"directory already exists: {path}")
    if os.path.exists(real):
        raise ValueError(f"path already exists but it is not a directory: {path}")
    try:
        os.makedirs(real)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"a part of the path is not a directory: {path}") from None
    return {"entry": entry(sandbox, path)}


def move(sandbox, message, directory):
    source, target = (path_of(message, name, directory) for name in ("source", "destination"))
    real = sandbox.box.real(source, follow=False)
    if not os.path.lexists(real):
        raise LookupError(f"source file not found: rename {source} {target}: no such file or directory")
    destination = sandbox.box.real(target, follow=False)
    os.makedirs(os.path.dirname(destination), exist_ok=True)
    os.rename(real, destination)
    return {"entry": entry(sandbox, target)}


def remove(sandbox, message, directory):
    real = sandbox.box.real(path_of(message, "path", directory), follow=False)
    if os.path.isdir(real) and not os.path.islink(real):
        shutil.rmtree(real)
    elif os.path.lexists(real):
        os.unlink(real)
    return {}


def watcher_for(sandbox, message, directory):
    path = path_of(message, "path", directory)
    if not os.path.exists(sandbox.box.real(path)):
        raise LookupError(f"path {path} not found: no such file or directory")
    if not os.path.isdir(sandbox.box.real(path)):
        raise ValueError(f"path {path} not a directory")
    shown = message.get("includeEntry", False)
    return Watcher(sandbox, path, bool(message.get("recursive")), entry if shown else None)


def create_watcher(sandbox, message, directory):
    return {"watcherId": watcher_for(sandbox, message, directory).id}


def watcher_named(sandbox, message):
    watcher = sandbox.watchers.get(message.get("watcherId"))
    if watcher is None:
        raise LookupError(f"watcher with id {message.get('watcherId')} not found")
    return watcher


def watcher_events(sandbox, message, directory):
    found = watcher_named(sandbox, message).take()
    return {"events": found} if found else {}


def remove_watcher(sandbox, message, directory):
    watcher_named(sandbox, message).close()
    return {}


async def watch_dir(stream):
    """The same events as a stream, until the client goes away."""
    watcher = watcher_for(stream.sandbox, await stream.message(), stream.directory)
    try:
        await stream.send({"start": {}})
        while True:
            try:
                async with asyncio.timeout(stream.keepalive):
                    await watcher.news.wait()
            except TimeoutError:
                await stream.send({"keepalive": {}})
            for event in watcher.take():
                await stream.send({"filesystem": event})
    finally:
        watcher.close()


CALLS = {
    "Stat": stat_file,
    "ListDir": list_directory,
    "MakeDir": make_directory,
    "Move": move,
    "Remove": remove,
    "CreateWatcher": create_watcher,
    "GetWatcherEvents": watcher_events,
    "RemoveWatcher": remove_watcher,
}
