"""Other ways to a sandbox at E2B: its official SDK, and HTTP by the standard library alone."""

import base64
import contextlib
import http.client
import json
import os
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from client import JSON
from double import DIRECT, KEY, SANDBOX_SECONDS, Certificate, Double
from e2b_code_interpreter import Sandbox

FOLDER = "/files"


@contextlib.contextmanager
def sdk_trusts(certificate: Certificate) -> Iterator[None]:
    """The SDK reads the environment once in a process, when it makes its connections: that must be in here."""
    before = dict(os.environ)
    os.environ.update(DIRECT, SSL_CERT_FILE=str(certificate.authority))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Sdk:
    """A sandbox of the official SDK."""

    def __init__(self, double: Double):
        place = {"api_key": KEY, "api_url": double.url, "sandbox_url": double.url, "debug": False}
        self.sandbox = Sandbox.create(timeout=SANDBOX_SECONDS, **place)
        self.run("pass")

    def run(self, code: str) -> str | None:
        """Runs a cell, which must succeed; gives its value as text."""
        execution = self.sandbox.run_code(code)
        assert execution.error is None, execution
        return execution.text

    def close(self) -> None:
        self.sandbox.kill()


class Bare:
    """A sandbox by http.client, through one connection that is kept, or a new one for each call."""

    def __init__(self, double: Double):
        self.place = urlsplit(double.url)
        file = double.certificate and double.certificate.authority
        self.tls = ssl.create_default_context(cafile=file) if file else None
        self.kept = self.connect()
        wanted = {"templateID": "code-interpreter-v1", "timeout": SANDBOX_SECONDS}
        made = json.loads(self.post(self.kept, "/v2/sandboxes", wanted, {"X-API-Key": KEY}))
        self.headers = {"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]}
        self.execute(f"import os; os.makedirs({FOLDER!r}, exist_ok=True)")

    def connect(self) -> http.client.HTTPConnection:
        address = (self.place.hostname, self.place.port)
        if self.tls:
            return http.client.HTTPSConnection(*address, timeout=60, context=self.tls)
        return http.client.HTTPConnection(*address, timeout=60)

    def post(self, connection: http.client.HTTPConnection, path: str, body: dict, headers: dict[str, str]) -> bytes:
        connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": JSON, **headers})
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status in (200, 201), (answer.status, said)
        return said

    def execute(self, code: str) -> bytes:
        """Runs a cell through the kept connection; gives all lines that came."""
        return self._execute(self.kept, code)

    def execute_anew(self, code: str) -> bytes:
        """The same through a connection of its own."""
        with contextlib.closing(self.connect()) as connection:
            return self._execute(connection, code)

    def _execute(self, connection: http.client.HTTPConnection, code: str) -> bytes:
        body = {"code": code, "context_id": None, "language": None, "env_vars": None}
        return self.post(connection, "/execute", body, {"E2b-Sandbox-Port": "49999", **self.headers})

    def list_files(self) -> bytes:
        """The call by which the service learns what a cell did to the files."""
        user = base64.b64encode(b"user:").decode()
        headers = {"E2b-Sandbox-Port": "49983", "Connect-Protocol-Version": "1", "Authorization": f"Basic {user}"}
        message = {"path": FOLDER, "depth": 64}
        return self.post(self.kept, "/filesystem.Filesystem/ListDir", message, {**headers, **self.headers})

    def close(self) -> None:
        self.kept.close()


def value_of(said: bytes) -> str:
    """The value of a cell, which must have come to its end."""
    events = [json.loads(line) for line in said.splitlines()]
    assert events[-1]["type"] == "end_of_execution", events
    (value,) = (event["text"] for event in events if event["type"] == "result")
    return value
