"""Reads processes in /proc: who is whose child, and how much memory each holds."""

import contextlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass
class Tree:
    """The processes below a service, by what they are for."""

    service: int
    wardens: list[int]
    zygotes: list[int]
    room_inits: list[int]
    kernels: list[int]


def tree(service: int) -> Tree:
    """Sorts a service's processes: serve, the warden and process 1 of its namespaces, zygotes, rooms, kernels."""
    children = children_of_all()
    wardens = [pid for pid in children[service] if is_warden(pid)]
    inner = [pid for warden in wardens for pid in children[warden]]
    below = [pid for pid in descendants(children, inner) if pid not in inner]
    direct = [pid for first in inner for pid in children[first]]
    zygotes = [pid for pid in direct if not is_warden(pid)]
    kernels = descendants(children, [kid for zygote in zygotes for kid in children[zygote]])
    known = {*zygotes, *kernels}
    return Tree(service, wardens + inner, zygotes, [pid for pid in below if pid not in known], kernels)


def children_of_all() -> dict[int, list[int]]:
    children = defaultdict(list)
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # the name before the last parenthesis may hold anything
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # what has ended and is not yet waited for holds no memory
        if fields[0] != "Z":
            children[int(fields[1])].append(int(folder.name))
    return children


def descendants(children: dict[int, list[int]], roots: list[int]) -> list[int]:
    """The roots and all that are below them."""
    found, open_ends = [], list(roots)
    while open_ends:
        pid = open_ends.pop()
        found.append(pid)
        open_ends += children.get(pid, [])
    return found


def running(root: int, program: Path, word: bytes) -> list[int]:
    """Those below a process that run that program and have the word in one of their arguments."""
    found = []
    for pid in descendants(children_of_all(), [root]):
        try:
            arguments = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[0] == bytes(program) and any(word in argument for argument in arguments[1:]):
            found.append(pid)
    return found


def count_of(program: Path) -> int:
    """How many processes of this machine run that program, whoever started them."""
    found = 0
    for folder in PROC.iterdir():
        # it may have ended meanwhile
        with contextlib.suppress(OSError):
            found += folder.name.isdigit() and (folder / "exe").samefile(program)
    return found


def is_warden(pid: int) -> bool:
    return b"sandbox-warden" in (PROC / str(pid) / "cmdline").read_bytes()


def pss_bytes(pids: list[int]) -> int:
    """The memory that the processes hold, each shared page divided by all that share it."""
    return sum(field_bytes(PROC / str(pid) / "smaps_rollup", "Pss") for pid in pids)


def private_bytes(pids: list[int]) -> int:
    """The memory that the processes share with nobody: what an end of them gives back."""
    names = ("Private_Clean", "Private_Dirty")
    return sum(field_bytes(PROC / str(pid) / "smaps_rollup", name) for pid in pids for name in names)


def status_bytes(pid: int, name: str) -> int:
    return field_bytes(PROC / str(pid) / "status", name)


def forget_peak(pid: int) -> None:
    """Makes VmHWM start anew at what the process holds now: proc(5), clear_refs."""
    (PROC / str(pid) / "clear_refs").write_text("5")


def field_bytes(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(f"{name} in {path.name}")
