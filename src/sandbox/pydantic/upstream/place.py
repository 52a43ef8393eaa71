"""Where a session's files are."""

import os
import stat

MOST_FILES = 100_000
DEEPEST = 64
FILES = "/files"
ASIDE = "/tmp/.interpreterd"  # for what is ours, on the same file system


class Refused(Exception):
    """What the caller must know: a word of ours."""


def prepare():
    """Programs may have removed the folders, or put something else there."""
    for folder in (FILES, ASIDE):
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                os.unlink(folder)
        except FileNotFoundError:
            pass
        os.makedirs(folder, exist_ok=True)
    try:
        os.stat(os.getcwd())
    except OSError:
        os.chdir(FILES)


def beside(name):
    """A file of ours."""
    if "/" in name or name in ("", ".", ".."):
        raise Refused("not_a_file")
    return f"{ASIDE}/{name}"


def clear(folder):
    """Removes all that is in a folder and can be removed."""
    for name, about in list(entries_of(folder)):
        path = f"{folder}/{name}"
        try:
            if stat.S_ISDIR(about.st_mode):
                clear(path)
                os.rmdir(path)
            else:
                os.unlink(path)
        except OSError:  # something is mounted there
            pass


def listing():
    """All regular files: path, size, and time of the last change in nanoseconds."""
    found, folders, cut = [], [("", 0)], False
    while folders:
        folder, depth = folders.pop()
        for name, about in entries_of(f"{FILES}/{folder}"):
            path = f"{folder}{name}"
            if stat.S_ISDIR(about.st_mode):
                cut |= depth >= DEEPEST
                folders += [(f"{path}/", depth + 1)] if depth < DEEPEST else []
            elif stat.S_ISREG(about.st_mode):
                if len(found) == MOST_FILES:
                    return {"files": found, "files_cut": True}
                found.append([readable(path), about.st_size, about.st_mtime_ns])
    return {"files": found, "files_cut": cut}


def entries_of(folder):
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    yield entry.name, entry.stat(follow_symlinks=False)
                except OSError:  # it is gone again
                    pass
    except OSError:
        pass


def parent(path, make=False):
    """Where a file is, once its folders were seen to be folders and no links."""
    folders = path.split("/")
    if "\0" in path or any(name in ("", ".", "..") for name in folders):
        raise Refused("not_a_file")
    here = FILES
    for name in folders[:-1]:
        here = f"{here}/{name}"
        about = look(here)
        if about is None and make:
            os.mkdir(here)
        elif about is None:
            raise Refused("absent")
        elif not stat.S_ISDIR(about.st_mode):
            raise Refused("not_a_file")
    return f"{here}/{folders[-1]}"


def look(path):
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def readable(text):
    """A text that is JSON whatever bytes it came from."""
    return text.encode("utf-8", "backslashreplace").decode()


def remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass
