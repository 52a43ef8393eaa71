"""Ids and times as the service writes them."""

import datetime
import secrets
import time

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32


def ulid():
    """26 characters, the first ten of them the time."""
    number = time.time_ns() // 1_000_000 << 80 | secrets.randbits(80)
    return "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def timestamp():
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
