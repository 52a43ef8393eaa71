"""writeFiles, readFiles, listFiles and removeFiles: paths relative to the working directory only."""

import base64
import binascii
import contextlib
import os
import shutil
import tempfile

from .errors import invalid

IMAGES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
BINARY = "application/octet-stream"


class FileRefusal(Exception):
    """What the tool says instead of doing it."""


class Folder:
    """The working directory of a session, seen from outside."""

    def __init__(self, guest, home):
        self.guest, self.home, self.root = guest, home, f"{home}/var"

    def resolve(self, path):
        """The real path; refused when it is absolute, or leads out of the folder."""
        if not isinstance(path, str):
            raise invalid("arguments", "paths are strings")
        found = None if path.startswith("/") or "\0" in path else os.path.realpath(os.path.join(self.root, path))
        if found is None or (found != self.root and not found.startswith(self.root + "/")):
            raise FileRefusal(f"Path must be relative to the working directory: {path}")
        return found

    def uri(self, path):
        return "file:///" + os.path.relpath(path, self.root)

    def write(self, content):
        """Writes all files or none; gives their number."""
        files = [(self.target(entry), content_of(entry)) for entry in entries_of(content)]
        with tempfile.TemporaryDirectory(dir=self.home) as staging, refusing("write"):
            for number, (_, data) in enumerate(files):
                with open(f"{staging}/{number}", "wb") as file:
                    file.write(data)
                self.guest.own(f"{staging}/{number}")
            for number, (path, _) in enumerate(files):
                self.make_directories(os.path.dirname(path))
                os.replace(f"{staging}/{number}", path)
        return len(files)

    def target(self, entry):
        path = self.resolve(entry["path"])
        if path == self.root or os.path.isdir(path):
            raise FileRefusal(f"Is a directory: {entry['path']}")
        parent = os.path.dirname(path)
        while not os.path.lexists(parent):
            parent = os.path.dirname(parent)
        if not os.path.isdir(parent):
            raise FileRefusal(f"Not a directory: {os.path.relpath(parent, self.root)}")
        return path

    def make_directories(self, path):
        if not os.path.isdir(path):
            self.make_directories(os.path.dirname(path))
            os.mkdir(path)
            self.guest.own(path)

    def read(self, paths, only_text):
        """A block for each path."""
        return [self.read_one(path, only_text) for path in paths]

    def read_one(self, path, only_text):
        found = self.resolve(path)
        if not os.path.isfile(found):
            raise FileRefusal(f"File not found: {path}")
        with open(found, "rb") as file:
            data = file.read()
        resource = {"uri": self.uri(found)}
        try:
            text = data.decode()
        except UnicodeDecodeError:
            if only_text:
                raise FileRefusal(f"Not a text file: {path}") from None
            resource |= {"type": "blob", "mimeType": kind_of(data), "blob": base64.b64encode(data).decode()}
        else:
            if only_text:  # as a file opened in text mode
                text = text.replace("\r\n", "\n")
            resource |= {"type": "text", "mimeType": "text/plain", "text": text}
        return {"type": "resource", "resource": resource}

    def list(self, path):
        directory = self.resolve(path)
        if not os.path.isdir(directory):
            raise FileRefusal(f"Directory not found: {path}")
        return [self.link(os.path.join(directory, name)) for name in sorted(os.listdir(directory))]

    def link(self, path):
        directory = os.path.isdir(path)
        return {
            "type": "resource_link",
            "uri": self.uri(path),
            "name": os.path.basename(path),
            "mimeType": "inode/directory" if directory else BINARY,
            "description": "Directory" if directory else "File",
            "size": os.lstat(path).st_size,
        }

    def remove(self, paths):
        """Gives the number of files."""
        found = [(path, self.resolve(path)) for path in paths]
        for path, real in found:
            if real == self.root or not os.path.lexists(real):
                raise FileRefusal(f"File not found: {path}")
        with refusing("remove"):
            for _, real in found:
                if os.path.isdir(real):
                    shutil.rmtree(real)
                else:
                    os.remove(real)
        return len(found)


@contextlib.contextmanager
def refusing(verb):
    try:
        yield
    except OSError as error:
        raise FileRefusal(f"Failed to {verb} files: {error.strerror}") from error


def entries_of(content):
    fit = isinstance(content, list) and all(isinstance(entry, dict) and "path" in entry for entry in content)
    if not fit:
        raise invalid("arguments.content", "must be a list of files with a path")
    return content


def content_of(entry):
    try:
        if "text" in entry:
            return entry["text"].encode()
        return base64.b64decode(entry.get("blob", ""), validate=True)
    except (AttributeError, TypeError, UnicodeEncodeError, binascii.Error) as error:
        raise invalid("arguments.content", f"no content: {error}") from error


def kind_of(data):
    return next((kind for start, kind in IMAGES.items() if data.startswith(start)), BINARY)
