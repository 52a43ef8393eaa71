"""Fetches packages of Pyodide's own distribution from its public CDN, or from a mirror."""

import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from runtime import DOWNLOAD_SECONDS, PYODIDE
from steps import Failure, require_sha256

# https://pyodide.org/en/stable/usage/downloading-and-deploying.html
PUBLIC = f"https://cdn.jsdelivr.net/pyodide/v{PYODIDE}/full/"
MIRROR = "INTERPRETERD_PYODIDE_CDN"
SILENCE_SECONDS = 30
PIECE = 1 << 20


def base() -> str:
    address = os.environ.get(MIRROR) or PUBLIC
    if not address.startswith(("https://", "http://")):
        raise Failure(f"{MIRROR} must be an address that begins with https:// or http://, and is {address}")
    return address.rstrip("/") + "/"


class Unreachable(Exception):
    """Why the network did not give a file."""


def download(entries: list[dict], folder: Path) -> None:
    """All files or a failure that names each one that is missing; hashes come from Pyodide's lock."""
    address = base()
    for number, entry in enumerate(entries):
        path = folder / entry["file_name"]
        try:
            with path.open("wb") as file:
                for piece in pieces(address + entry["file_name"]):
                    file.write(piece)
        except Unreachable as why:
            raise Failure(unreachable(address, entries[number:], str(why))) from None
        require_sha256(path, entry["sha256"], address)


def pieces(address: str) -> Iterator[bytes]:
    ends = time.monotonic() + DOWNLOAD_SECONDS
    try:
        authority = os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE")
        context = ssl.create_default_context(cafile=authority)
        with urllib.request.urlopen(address, timeout=SILENCE_SECONDS, context=context) as answer:
            while piece := answer.read(PIECE):
                yield piece
                if time.monotonic() > ends:
                    raise Unreachable(f"not whole after {DOWNLOAD_SECONDS} seconds")
    except urllib.error.HTTPError as error:
        raise Unreachable(f"it answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        raise Unreachable(getattr(cause, "strerror", None) or str(cause) or type(cause).__name__) from None


def unreachable(address: str, missing: list[dict], why: str) -> str:
    files = "\n  ".join(entry["file_name"] for entry in missing)
    first = missing[0]
    return (
        f"{first['name']} {first['version']} cannot be had from {address}: {why}\n"
        f"run this where that address can be reached, or name a mirror of it with --cdn,\n"
        f"or bring these files of it in a folder and give that with --wheels:\n  {files}"
    )
