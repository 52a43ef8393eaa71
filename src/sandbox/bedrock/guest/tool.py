"""What is done beside the interpreter, each time by a process of its own."""

import base64
import hashlib
import json
import os
import shutil
import stat

from _interpreterd import shell
from _interpreterd.captured import ends, read_at
from _interpreterd.place import Place, open_regular, remove, write

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
            remove(self.place.beside(self.told["drop"]))
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
            write(self.place.beside(answer["out"]), content)
        return answer

    def range(self, size):
        first, last = self.told["first"], self.told["last"]
        if self.told["from_end"] is not None:
            first = max(size - self.told["from_end"], 0)
        last = size if last is None else min(last, size)
        return first, max(min(last, first + self.told["most"]), first)

    def put(self):
        """Puts a file in place: whole, or not at all."""
        ready = self.place.beside(self.told["in"])
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
        streams = {"stdout": self.left("out"), "stderr": self.left("err")}
        remove(self.place.beside(f"stop-{self.told['id']}"))
        return {**streams, **self.place.listing()}

    def left(self, stream):
        path = self.place.beside(f"{self.told['id']}.{stream}")
        try:
            file = open_regular(path)
        except OSError:
            return {"head": "", "tail": "", "bytes": 0}
        remove(path)
        return ends(file, self.told["output_bytes"])

    def fetch(self):
        """A piece of a file of ours, where it cannot be had otherwise."""
        file = open_regular(self.place.beside(self.told["name"]))
        content = read_at(file, self.told["first"], self.told["length"])
        return {"content": base64.b64encode(content).decode()}

    def forget(self):
        for name in self.told["names"]:
            remove(self.place.beside(name))
        return {}

    def shell(self):
        outcome = shell.run(self.told, self.place)
        return {**outcome, **self.place.listing()}

    def end_left(self):
        """Ends commands that an earlier start of the service has left running."""
        shell.end_tagged(f"{shell.TAG}={shell.mark_of(self.place)}".encode())
        return {}

    def follow(self):
        return shell.follow(self.told, self.place)


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


def shorten(found):
    """What of an answer needs no disk. What was done is told, however short."""
    for name in ("stdout", "stderr"):
        if name in found:
            found[name].update(head=found[name]["head"][:16_384], tail="")
    if "files" in found:
        found["files"] = None
    return found


def answer(told):
    """Does one piece of work, and gives the line that tells of it."""
    if "args" in told:  # they were too long for a command line
        path = os.path.join(told["aside"], told["args"])
        file = open_regular(path)
        told.update(json.loads(read_at(file, 0, os.fstat(file).st_size)))
        remove(path)
    try:
        tool = Tool(told)
        found = getattr(tool, told["do"])()
    except Refused as error:
        found = {"refused": str(error)}
    except OSError as error:
        found = {"refused": "full" if error.errno in (28, 122) else "held_back"}
    place = Place(told["files_dir"], told["aside"])
    if told["do"] == "fetch":
        return told["mark"] + json.dumps(found)  # it is what fetches long answers
    try:
        return place.tell(told["mark"], found)
    except OSError:
        return place.tell(told["mark"], shorten(found))
