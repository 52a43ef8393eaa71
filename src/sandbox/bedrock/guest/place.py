"""Where a session's files are, and how answers leave the sandbox."""

import hashlib
import json
import os
import stat
import time

MOST_FILES = 100_000
DEEPEST = 64
SURE = 16_000  # bytes of an answer that are printed and nowhere else
PRINTED = 200_000  # bytes of an answer that are printed too
FETCHED = ("answer-", "out-", "args-", "stop-")
FETCHED_WITHIN = 900  # seconds
REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Place:
    """The files folder, and the folder beside it for what is ours."""

    def __init__(self, files, aside):
        self.files, self.aside = files, aside

    def prepare(self):
        """Programs may have removed them, or put something else there."""
        try:
            os.makedirs(self.files, exist_ok=True)
        except OSError:
            pass  # then there are no files
        self.prepare_aside()
        self.sweep()

    def prepare_aside(self):
        try:
            if not stat.S_ISDIR(os.lstat(self.aside).st_mode):
                os.unlink(self.aside)
        except FileNotFoundError:
            pass
        try:
            os.mkdir(self.aside, 0o700)
        except FileExistsError:
            os.chmod(self.aside, 0o700)

    def sweep(self):
        """What was to be fetched and was not is removed by us."""
        with os.scandir(self.aside) as entries:
            for entry in entries:
                try:
                    is_old = time.time() - entry.stat(follow_symlinks=False).st_mtime > FETCHED_WITHIN
                except OSError:
                    continue
                if is_old and entry.name.startswith(FETCHED):
                    remove(entry.path)

    def beside(self, name):
        return os.path.join(self.aside, name)

    def tell(self, mark, answer):
        """The line that holds an answer. A long one stands in a file too: what is printed may be cut."""
        text = json.dumps(answer, separators=(",", ":"))
        if len(text) <= SURE:
            return mark + text
        name, content = "answer-" + mark.strip(":"), text.encode("ascii")
        try:
            write(self.beside(name), content)
        except OSError:
            if len(text) <= PRINTED:
                return mark + text
            raise
        digest = hashlib.sha256(content).hexdigest()
        place = mark + json.dumps({"aside": name, "bytes": len(text), "sha256": digest})
        return f"{place}\n{text}" if len(text) <= PRINTED else place

    def listing(self):
        """All regular files: path, size, and time of the last change in nanoseconds."""
        found, folders, cut = [], [("", 0)], False
        while folders:
            folder, depth = folders.pop()
            for name, about in entries_of(os.path.join(self.files, folder)):
                path = os.path.join(folder, name)
                if stat.S_ISDIR(about.st_mode):
                    cut |= depth >= DEEPEST
                    folders += [(path, depth + 1)] if depth < DEEPEST else []
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


def open_regular(path):
    """A file of ours, unless a program has put something else there."""
    file = os.open(path, REGULAR)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(path)
    return file


def write(path, content):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while content:
            content = content[os.write(file, content) :]
    finally:
        os.close(file)


def readable(text):
    """A text that is JSON whatever bytes it came from."""
    return text.encode("utf-8", "backslashreplace").decode()


def remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass
