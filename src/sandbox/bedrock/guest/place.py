"""Where a session's files are, and how answers leave the sandbox."""

import hashlib
import json
import os
import stat
import time

MOST_FILES = 100_000
SURE = 16_000  # bytes of an answer that are printed and nowhere else
PRINTED = 200_000  # bytes of an answer that are printed too
FETCHED = ("answer-", "out-", "args-", "stop-")
FETCHED_WITHIN = 900  # seconds


class Place:
    """The files folder, and the folder beside it for what is ours."""

    def __init__(self, files, aside):
        self.files, self.aside = files, aside

    def prepare(self):
        """Programs may have removed them. What was to be fetched and was not is removed by us."""
        for folder in (self.files, self.aside):
            os.makedirs(folder, exist_ok=True)
        for entry in os.scandir(self.aside):
            if (
                entry.name.startswith(FETCHED)
                and time.time() - entry.stat(follow_symlinks=False).st_mtime > FETCHED_WITHIN
            ):
                remove(entry.path)

    def tell(self, mark, answer):
        """The line that holds an answer. A long one stands in a file too: what is printed may be cut."""
        text = json.dumps(answer, separators=(",", ":"))
        if len(text) <= SURE:
            return mark + text
        name = "answer-" + mark.strip(":")
        with open(os.path.join(self.aside, name), "wb") as file:
            file.write(text.encode("ascii"))
        digest = hashlib.sha256(text.encode("ascii")).hexdigest()
        place = mark + json.dumps({"aside": name, "bytes": len(text), "sha256": digest})
        return f"{place}\n{text}" if len(text) <= PRINTED else place

    def listing(self):
        """All regular files: path, size, and time of the last change in nanoseconds."""
        found = []
        prefix = len(self.files) + 1
        for folder, folders, names in os.walk(self.files):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                try:
                    about = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISREG(about.st_mode):
                    if len(found) == MOST_FILES:
                        return {"files": found, "files_cut": True}
                    found.append([readable(path[prefix:]), about.st_size, about.st_mtime_ns])
        return {"files": found, "files_cut": False}


def readable(text):
    """A text that is JSON whatever bytes it came from."""
    return text.encode("utf-8", "backslashreplace").decode()


def remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass
