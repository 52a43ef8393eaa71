"""The smallest HTTP client: one kept connection, no library to measure."""

import json
import socket
from typing import NamedTuple

JSON = "application/json"


class Answer(NamedTuple):
    """What a request was answered with."""

    status: int
    body: bytes

    def json(self):
        return json.loads(self.body)

    def expect(self, status: int) -> "Answer":
        """Itself, or a failure that shows what came instead."""
        if self.status != status:
            raise AssertionError(f"{self.status} for {status}: {self.body[:500]!r}")
        return self


class Client:
    """One connection that is kept."""

    def __init__(self, address: tuple[str, int]):
        self.address = address
        self.socket = connect(address)

    def call(self, method: str, path: str, body: bytes = b"", kind: str = JSON) -> Answer:
        """One request and its whole answer."""
        return self.send(request(method, path, body, kind))

    def send(self, order: bytes) -> Answer:
        """The same of a request that has been made."""
        self.socket.sendall(order)
        received = bytearray()
        while True:
            part = self.socket.recv(1 << 18)
            if not part:
                raise ConnectionError("the connection ended before the answer did")
            received += part
            answer = parse(received)
            if answer:
                return answer

    def post(self, path: str, value: object) -> Answer:
        return self.call("POST", path, encode(value))

    def close(self) -> None:
        self.socket.close()


def connect(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, timeout=300)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def encode(value: object) -> bytes:
    return json.dumps(value).encode()


def request(method: str, path: str, body: bytes = b"", kind: str = JSON, key: str | None = None) -> bytes:
    """The bytes of a request; every service here answers to the name localhost."""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    if key is not None:
        head += f"idempotency-key: {key}\r\n"
    return f"{head}\r\n".encode() + body


def parse(received: bytearray) -> Answer | None:
    """The answer, once all of it is there."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    status = int(received[9:12])
    length = body_length(status, received[:end])
    if len(received) < end + 4 + length:
        return None
    return Answer(status, bytes(received[end + 4 : end + 4 + length]))


def body_length(status: int, head: bytearray) -> int:
    if status in (204, 304):
        return 0
    low = head.lower()
    at = low.find(b"\r\ncontent-length:")
    if at < 0:
        raise AssertionError(f"an answer without a length: {bytes(head)!r}")
    return int(low[at + 17 :].partition(b"\r\n")[0])
