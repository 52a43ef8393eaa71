"""Starts interpreterd and speaks its API."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from client import Answer, Client, encode


class Service:
    """A service in a process of its own, on a fresh data folder unless one is named, and one connection to it."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        pool: int | None,
        allow_no_pool: bool = False,
        env: dict[str, str] | None = None,
        data: Path | None = None,
    ):
        folder.mkdir()
        self.allow_no_pool = allow_no_pool
        self.has_pool = pool != 0
        self.errors = folder / "stderr"
        command = [program, "serve", "--listen", "127.0.0.1:0", "--data-dir", data or folder / "data"]
        command += ["--lifetime-seconds", "86400", "--max-sessions", "1000"]
        # the head of a request may come late: rivals are slow, and the connection is kept meanwhile
        command += ["--head-seconds", "3600", "--idle-seconds", "86400"]
        with self.errors.open("w") as errors:
            environ = settings(pool) | (env or {})
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environ)
        try:
            self.address = self._address()
            self.client = Client(self.address)
            self.settle()
        except BaseException:
            self.stop()
            raise

    def _address(self) -> tuple[str, int]:
        line = self.process.stdout.readline().decode()
        if "answers on" not in line:
            raise RuntimeError(f"the service did not start: {self.errors.read_text()[-2000:]}")
        host, _, port = line.strip().rpartition("/")[2].rpartition(":")
        return host, int(port)

    def provider(self, name: str | None = None) -> dict:
        """What the service says of an entry; of the first, which is the default's, where none is named."""
        entries = self.client.call("GET", "/v1/providers").expect(200).json()["data"]
        return next(entry for entry in entries if name in (None, entry["name"]))

    def settle(self, seconds: float = 60) -> None:
        """Waits until the pool is full, where this service is to have one."""
        deadline = time.monotonic() + seconds
        while self.has_pool:
            pool = self.provider().get("pool")
            if pool is None:
                if self.allow_no_pool:
                    return
                raise RuntimeError("this program offers no pool in /v1/providers: pass --allow-no-pool to go on")
            if is_full(pool):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the pool is not full after {seconds} s: {pool}")
            time.sleep(0.001)

    def pooled(self) -> int:
        """How many sandboxes lie ready in the pool."""
        return sum(entry["ready"] for entry in self.provider().get("pool") or [])

    def create(self, **fields: object) -> str:
        """Makes a session that is ready at once; gives its id."""
        session = self.client.post("/v1/sessions", fields).expect(201).json()
        assert session["state"] == "ready", session
        return session["id"]

    def exec(self, session: str, code: str, timeout_seconds: float | None = None) -> dict:
        """Runs a cell, which must succeed."""
        body = {"code": code} if timeout_seconds is None else {"code": code, "timeout_seconds": timeout_seconds}
        return success(self.client.call("POST", exec_path(session), encode(body)))

    def delete(self, session: str) -> None:
        self.client.call("DELETE", f"/v1/sessions/{session}").expect(204)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.close()
        self.stop()


def is_full(pool: list[dict]) -> bool:
    return any(entry["size"] for entry in pool) and all(entry["ready"] >= entry["size"] for entry in pool)


def settings(pool: int | None) -> dict[str, str]:
    environ = dict(os.environ, INTERPRETERD_LOG="error")
    environ.pop("INTERPRETERD_LOCAL_POOL", None)
    if pool is not None:
        environ["INTERPRETERD_LOCAL_POOL"] = str(pool)
    return environ


def exec_path(session: str) -> str:
    return f"/v1/sessions/{session}/exec"


def success(answer: Answer) -> dict:
    """The execution of an answer, which must be a success."""
    execution = json.loads(answer.expect(200).body)
    if execution["status"] != "success":
        raise AssertionError(f"a cell failed: {execution['status']} {execution['error']} {execution.get('failure')}")
    return execution
