"""What the figures were taken on: processor, kernel, Python, load."""

import datetime
import hashlib
import os
import platform
import subprocess
from pathlib import Path


def now() -> dict:
    moment = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"at": moment, "load": [round(load, 2) for load in os.getloadavg()]}


def describe() -> dict:
    facts = cpu_facts()
    return {
        "cpu": facts.get("model name") or platform.machine(),
        "virtual": "hypervisor" in facts.get("flags", "").split(),
        "cores": os.cpu_count(),
        "memory_gib": round(meminfo_bytes("MemTotal") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def program(path: Path) -> str:
    """The version that the program says, and what tells builds of it apart."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip()
    return f"{said} (SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]})"


def cpu_facts() -> dict[str, str]:
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    return facts


def busy_ticks() -> tuple[int, int]:
    """For how long the processors have worked, and for how long they have been there: proc(5), /proc/stat."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:8]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def kind_of_files(folder: Path) -> str:
    """The kind of file system that a folder is on, such as tmpfs."""
    return subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True).stdout.strip()


def meminfo_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)
