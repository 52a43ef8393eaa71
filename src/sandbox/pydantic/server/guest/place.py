"""Where a session's files are, and how text leaves the interpreter."""

import os
import sys

FILES = "/files"


def go_there():
    """Programs begin where their files are, whatever an earlier one did."""
    os.chdir(FILES)
    if "" not in sys.path:
        sys.path.insert(0, "")
    if FILES not in sys.path:
        sys.path.insert(1, FILES)


def readable(text):
    """A text that is JSON whatever bytes it came from."""
    return text.encode("utf-8", "backslashreplace").decode()
