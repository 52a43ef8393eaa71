"""What is done beside the interpreter, each time by a process of its own."""

import base64
import hashlib
import json
import os
import shutil
import stat

from _interpreterd.captured import read_at
from _interpreterd.place import Place, remove

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PIECE = 1 << 20


class Refused(Exception):
    """What the caller must know: a word of ours."""


class Tool:
    """One piece of work on the files of a session."""

    def __init__(self, told):
        self.told = told
        self.place = Place(told["files_dir"], told["aside"])
        self.place.prepare()

    def parent(self, make=False):
        """The folder of the file that is meant, reached without links, and the file's name in it."""
        *folders, name = os.fsencode(self.told["path"]).split(b"/")
        here = os.open(self.place.files, FOLDER)
        for folder in folders:
            try:
                if make:
                    make_folder(folder, here)
                below = os.open(folder, FOLDER, dir_fd=here)
            except FileNotFoundError:
                raise Refused("absent") from None
            except NotADirectoryError:
                raise Refused("not_a_file") from None
            except OSError as error:
                raise Refused("not_a_file" if error.errno == 40 else "held_back") from error
            finally:
                os.close(here)
            here = below
        return here, name

    def list(self):
        return self.place.listing()

    def slice(self):
        """A part of a file: told at once when it is small, else put where it can be fetched."""
        if self.told["drop"]:
            remove(os.path.join(self.place.aside, self.told["drop"]))
        folder, name = self.parent()
        about = look(folder, name)
        if about is None:
            raise Refused("absent")
        if not stat.S_ISREG(about.st_mode):
            raise Refused("not_a_file")
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        about = os.fstat(file)
        first, last = self.range(about.st_size)
        content = read_at(file, first, last - first)
        answer = {"entry": entry(about), "first": first, "sha256": hashlib.sha256(content).hexdigest()}
        answer["length"] = len(content)
        if len(content) <= self.told["inline"]:
            answer["content"] = base64.b64encode(content).decode()
        else:
            answer["out"] = self.told["out"]
            with open(os.path.join(self.place.aside, answer["out"]), "wb") as out:
                out.write(content)
        return answer

    def range(self, size):
        first, last = self.told["first"], self.told["last"]
        if self.told["from_end"] is not None:
            first = max(size - self.told["from_end"], 0)
        last = size if last is None else min(last, size)
        return first, max(min(last, first + self.told["most"]), first)

    def put(self):
        """Puts a file in place: whole, or not at all."""
        ready = os.path.join(self.place.aside, self.told["in"])
        try:
            self.assemble(ready)
            folder, name = self.parent(make=True)
            self.check(look(folder, name))
            os.replace(ready, name, dst_dir_fd=folder)
            return {"entry": entry(look(folder, name))}
        finally:
            remove(ready)
            shutil.rmtree(ready + ".parts", ignore_errors=True)

    def assemble(self, ready):
        digest = hashlib.sha256()
        with open(ready, "wb") as out:
            for piece in self.pieces(ready):
                digest.update(piece)
                out.write(piece)
        if digest.hexdigest() != self.told["sha256"]:
            raise Refused("cut")

    def pieces(self, ready):
        if self.told["content"] is not None:
            yield base64.b64decode(self.told["content"])
        for number in range(self.told["parts"]):
            path = f"{ready}.parts/{number}"
            with open(path, "rb") as part:
                while piece := part.read(PIECE):
                    yield piece
            remove(path)  # else the disk must hold it twice

    def remove(self):
        folder, name = self.parent()
        about = look(folder, name)
        if about is None:
            raise Refused("absent")
        self.check(about)
        os.unlink(name, dir_fd=folder)
        return {}

    def check(self, about):
        """Whether a file may be replaced or removed as it is now."""
        if about is not None and not stat.S_ISREG(about.st_mode):
            raise Refused("not_a_file")
        kind, tags = self.told["condition"]
        tag = None if about is None else f"{about.st_size:x}-{about.st_mtime_ns:x}"
        among = tag is not None and (not tags or tag in tags)
        if (kind == "matches" and not among) or (kind == "differs" and among):
            raise Refused("condition")

    def take(self):
        """What a program printed whose interpreter is gone."""
        ends = []
        for stream in ("out", "err"):
            ends.append(self.ends(os.path.join(self.place.aside, f"{self.told['id']}.{stream}")))
        remove(os.path.join(self.place.aside, f"stop-{self.told['id']}"))
        return {"stdout": ends[0], "stderr": ends[1], **self.place.listing()}

    def ends(self, path):
        from _interpreterd.captured import Captured

        captured = Captured.__new__(Captured)
        captured.most = self.told["output_bytes"]
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return {"head": "", "tail": "", "bytes": 0}
        remove(path)
        return captured.ends(file)

    def fetch(self):
        """A piece of a file of ours, where it cannot be had otherwise."""
        path = os.path.join(self.place.aside, self.told["name"])
        with open(path, "rb") as file:
            content = read_at(file.fileno(), self.told["first"], self.told["length"])
        return {"content": base64.b64encode(content).decode()}

    def forget(self):
        for name in self.told["names"]:
            remove(os.path.join(self.place.aside, name))
        return {}

    def shell(self):
        from _interpreterd.shell import run

        return {**run(self.told, self.place), **self.place.listing()}

    def end_left(self):
        """Ends commands that an earlier start of the service has left running."""
        from _interpreterd.shell import TAG, end_all

        end_all(f"{TAG}=".encode())
        return {}

    def follow(self):
        from _interpreterd.shell import follow

        return follow(self.told, self.place)


def make_folder(name, parent):
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        pass


def look(folder, name):
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def entry(about):
    return [about.st_size, about.st_mtime_ns]


def answer(told):
    """Does one piece of work, and gives the line that tells of it."""
    if "args" in told:  # they were too long for a command line
        path = os.path.join(told["aside"], told["args"])
        with open(path, encoding="utf-8") as file:
            told.update(json.load(file))
        remove(path)
    tool = Tool(told)
    try:
        found = getattr(tool, told["do"])()
    except Refused as error:
        found = {"refused": str(error)}
    except OSError as error:
        found = {"refused": "full" if error.errno in (28, 122) else "failed", "errno": error.errno}
    if told["do"] == "fetch":
        return told["mark"] + json.dumps(found)  # it is what fetches long answers
    try:
        return tool.place.tell(told["mark"], found)
    except OSError:
        return tool.place.tell(told["mark"], {"refused": "full"})
