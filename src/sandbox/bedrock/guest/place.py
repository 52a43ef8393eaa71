"""Where a session's files are, and how answers leave the sandbox."""

import hashlib
import json
import os
import stat

MOST_FILES = 100_000
MOST_INLINE = 200_000  # bytes of an answer that is printed; a longer one goes into a file


class Place:
    """The files folder, and the folder beside it for what is ours."""

    def __init__(self, files, aside):
        self.files, self.aside = files, aside

    def prepare(self):
        """Programs may have removed them."""
        for folder in (self.files, self.aside):
            os.makedirs(folder, exist_ok=True)

    def tell(self, mark, answer):
        """The line that holds an answer, or the name of the file that does."""
        text = json.dumps(answer, separators=(",", ":"))
        if len(text) <= MOST_INLINE:
            return mark + text
        name = "answer-" + mark.strip(":")
        with open(os.path.join(self.aside, name), "wb") as file:
            file.write(text.encode("ascii"))
        digest = hashlib.sha256(text.encode("ascii")).hexdigest()
        return mark + json.dumps({"aside": name, "bytes": len(text), "sha256": digest})

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
