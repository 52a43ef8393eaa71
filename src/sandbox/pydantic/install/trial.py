"""Runs our server: makes its snapshot, and tries it with the packages of the store."""

import json
import os
import subprocess
import threading
import time
from pathlib import Path

from runtime import deno_environment
from steps import Failure, run

SNAPSHOT_SECONDS = 300
TRIAL_SECONDS = 600
STDERR_TAIL = 2000
# all packages at once may need more than one session gets: 2 GiB
PAGES = 32768
ISOLATED = ["--no-prompt", "--no-remote", "--no-npm", "--no-config", "--no-lock", "--cached-only"]
V8 = f"--v8-flags=--wasm-max-mem-pages={PAGES},--disallow-code-generation-from-strings,--expose-gc"


class Server:
    """Where the parts of the server stand while it is tried."""

    def __init__(self, deno: Path, server: Path, pyodide: Path, work: Path):
        self.deno = deno
        self.server = server
        self.pyodide = pyodide
        self.work = work
        self.environment = deno_environment(work / "deno")

    def launch(self, readable: list[Path], permissions: list[str], arguments: list) -> list:
        read = ",".join(map(str, [self.server, self.pyodide, *readable]))
        script = self.server / "server.mjs"
        deno = [self.deno, "run", *ISOLATED, V8, f"--allow-read={read}", *permissions]
        return [*deno, script, *arguments, "--pyodide", self.pyodide]

    def make_snapshot(self, target: Path) -> None:
        """Whole or not at all."""
        made = self.work / "snapshot.bin"
        command = self.launch([], [f"--allow-write={made}"], ["make-snapshot", "--out", made])
        run("making the snapshot", command, seconds=SNAPSHOT_SECONDS, env=self.environment)
        if not made.is_file() or not made.stat().st_size:
            raise Failure("making the snapshot left no file")
        os.replace(made, target)

    def try_packages(self, snapshot: Path, store: Path, entries: dict[str, dict]) -> dict[str, str]:
        """Imports each package once, as a session would, and gives the versions found."""
        arguments = ["--snapshot", snapshot, "--packages", store, "--return-mode", "json"]
        limits = ["--timeout-ms", str(TRIAL_SECONDS * 1000), "--max-timeout-ms", str(TRIAL_SECONDS * 1000)]
        command = self.launch([store, snapshot], [], [*arguments, *limits])
        errors = self.work / "server.log"
        with errors.open("wb") as log:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        ends = time.monotonic() + TRIAL_SECONDS
        alarm = threading.Timer(TRIAL_SECONDS, process.kill)
        alarm.daemon = True
        alarm.start()
        try:
            return converse(Dialogue(process), entries)
        except (BrokenPipeError, EOFError):
            late = "" if time.monotonic() < ends else f" within {TRIAL_SECONDS} seconds"
            tail = errors.read_bytes()[-STDERR_TAIL:].decode(errors="replace").strip()
            raise Failure(f"the server ended without an answer{late}\n{tail}".strip()) from None
        finally:
            alarm.cancel()
            process.kill()
            process.wait()


class Dialogue:
    """MCP over stdio, one JSON object a line."""

    def __init__(self, process: subprocess.Popen):
        self.process = process
        self.count = 0

    def send(self, method: str, **message) -> None:
        line = json.dumps({"jsonrpc": "2.0", "method": method, **message})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: dict) -> dict:
        self.count += 1
        self.send(method, id=self.count, params=params)
        for line in self.process.stdout:
            message = parse(line)
            if message.get("id") == self.count:
                if "error" in message:
                    raise Failure(f"the server refuses {method}: {message['error'].get('message')}")
                return message["result"]
        raise EOFError

    def run_cell(self, code: str):
        """The value of the cell's last expression."""
        result = self.ask("tools/call", {"name": "run_python_code", "arguments": {"python_code": code}})
        answer = parse(result["content"][0]["text"])
        if answer.get("status") != "success":
            raise Failure(f"Python in WebAssembly failed:\n{answer.get('error') or answer}")
        return answer.get("return_value")


def parse(line: bytes | str) -> dict:
    """Anything else than an object is nothing."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def converse(dialogue: Dialogue, entries: dict[str, dict]) -> dict[str, str]:
    client = {"name": "interpreterd-install", "version": "0"}
    dialogue.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
    dialogue.send("notifications/initialized")
    if dialogue.run_cell("1 + 1") != 2:
        raise Failure("Python in WebAssembly does not say that 1 + 1 is 2")
    report = dialogue.run_cell(import_cell(entries))
    if report["broken"]:
        lines = [f"{name}: {why}" for name, why in report["broken"].items()]
        raise Failure("packages that cannot be imported:\n  " + "\n  ".join(lines))
    return report["found"]


def import_cell(entries: dict[str, dict]) -> str:
    """The imports stand in the code as such: by them the server sees what to load."""
    lines = ["import importlib.metadata", "found, broken = {}, {}"]
    for name, entry in entries.items():
        module = main_module(name, entry["imports"])
        if module:
            lines += [
                "try:",
                f"    import {module}",
                f"    found[{name!r}] = importlib.metadata.version({entry['name']!r})",
                "except Exception as error:",
                f"    broken[{name!r}] = repr(error)",
            ]
    return "\n".join([*lines, "dict(found=found, broken=broken)"])


def main_module(name: str, imports: list[str]) -> str | None:
    """The one named like the package, or the first public one; a shared library has none."""
    own = name.replace("-", "_")
    public = [module for module in imports if not module.startswith("_")]
    return own if own in imports else next(iter(public or imports), None)
