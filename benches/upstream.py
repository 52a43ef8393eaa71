"""The genuine mcp-run-python that `make doubles` installs: for a service to start, and by itself over its pipes."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import places

PACKAGES = Path(__file__).resolve().parent.parent / "tests" / "doubles" / "upstream" / "packages.txt"
# an argument by which its processes are known, and those of the service's own server
ITS_WORD, OUR_WORD = b"src/main.ts", b"server.mjs"
PROTOCOL = "2025-06-18"
END_SECONDS = 5


class NotInstalled(Exception):
    """Something that this needs is not there."""


class Upstream:
    """A copy that anybody may read, run by the Deno of the service's own guest."""

    def __init__(self, folder: Path):
        self.guest = newest_guest()
        self.deno = self.guest / "bin" / "deno"
        source = places.doubles() / "upstream"
        if not (source / "command.json").exists():
            raise NotInstalled("mcp-run-python is not here: run `make doubles`")
        folder.mkdir()
        # as root the service starts it as another user, who cannot read everybody's home
        self.folder = folder / "upstream"
        shutil.copytree(source, self.folder, symlinks=True)
        self.cache = folder / "cache"
        self.command = [str(self.deno), *json.loads((source / "command.json").read_text())["args"]]

    def versions(self) -> str:
        about = json.loads((self.guest / "guest.json").read_text())
        pyodide = json.loads((self.folder / "node_modules" / "pyodide" / "package.json").read_text())["version"]
        server = re.search(r"^mcp-run-python==(\S+)", PACKAGES.read_text(), re.MULTILINE)[1]
        ours = f"the guest is Deno {about['deno']} and Pyodide {about['pyodide']} (Python {about['python']})"
        return f"{ours}; mcp-run-python {server} runs on the same Deno, with Pyodide {pyodide}"

    def environ(self, user: str) -> dict[str, str]:
        """What it is given; V8 keeps its code in the cache, a user's own each."""
        cache = self.cache / user
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o777)
        return {"DENO_DIR": str(cache), "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}

    def start(self) -> "Raw":
        return Raw(self)


class Raw:
    """A process of it, spoken to by nothing but JSON lines."""

    def __init__(self, upstream: Upstream):
        environ = upstream.environ("raw") | {"PATH": os.environ["PATH"], "HOME": str(upstream.folder)}
        self.process = subprocess.Popen(
            upstream.command,
            cwd=upstream.folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.count = 0
        client = {"name": "bench", "version": "0"}
        self.call("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client})
        self.send({"method": "notifications/initialized"})

    def run(self, code: str) -> object:
        """Runs a cell, which must succeed; gives its value."""
        (block,) = self.call("tools/call", {"name": "run_python_code", "arguments": {"python_code": code}})["content"]
        said = json.loads(block["text"])
        assert said["status"] == "success", said
        return said["return_value"]

    def call(self, method: str, params: dict) -> dict:
        self.count += 1
        self.send({"id": self.count, "method": method, "params": params})
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self.count:
                return answer["result"]
        raise RuntimeError("mcp-run-python has ended")

    def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def pid(self) -> int:
        return self.process.pid

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def newest_guest() -> Path:
    """The folder of the Deno and the Pyodide with which the service makes sandboxes."""
    found = [about.parent for about in places.guests().glob("pydantic-*/guest.json")]
    if not found:
        raise NotInstalled("there is no Deno: run `interpreterd guest install --provider pydantic`")
    return max(found, key=lambda folder: folder.stat().st_mtime)
