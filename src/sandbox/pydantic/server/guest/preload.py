"""Imports what programs often need, so that it stands ready in a snapshot."""

import importlib

NAMES = """
    argparse ast asyncio base64 bisect calendar cmath collections.abc contextlib contextvars copy csv ctypes
    dataclasses datetime decimal difflib encodings.cp437 enum fnmatch fractions functools glob gzip hashlib
    heapq html importlib.metadata importlib.resources.readers inspect io itertools json linecache logging math
    numbers operator os pathlib pickle platform pprint random re secrets shutil statistics string struct
    tarfile tempfile textwrap threading time traceback typing unicodedata urllib.parse uuid warnings weakref
    xml.etree.ElementTree zipfile zoneinfo
"""

for name in NAMES.split():
    importlib.import_module(name)
