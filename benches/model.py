"""A model that answers at once, or after a time: chat completions on loopback, in a process of its own."""

import asyncio
import contextlib
import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from client import Client

NAME = "bench"
COMPLETIONS = "/v1/chat/completions"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Model:
    """The model's process, and a connection to ask it what it did."""

    def __init__(self, turns: int, delay_seconds: float = 0.0):
        command = [sys.executable, Path(__file__).resolve(), str(turns), str(delay_seconds)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        port = self.process.stdout.readline()
        if not port:
            raise RuntimeError("the model's process did not start")
        self.address = ("127.0.0.1", int(port))
        self.client = Client(self.address)

    def settings(self) -> dict[str, str]:
        """What a service must know to ask it."""
        host, port = self.address
        base = f"http://{host}:{port}/v1"
        # a proxy of the machine would stand between
        return {"INTERPRETERD_MODEL": NAME, "INTERPRETERD_MODEL_BASE_URL": base, "NO_PROXY": host, "no_proxy": host}

    def spent_ms(self) -> float:
        """What the model itself took for all that it was asked since this was asked last."""
        return self.client.call("GET", "/spent").expect(200).json()

    def asked(self) -> bytes:
        """The body of the last request."""
        return self.client.call("GET", "/asked").expect(200).body

    def close(self) -> None:
        self.client.close()
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Server:
    """Calls the tool until it has done so in all turns but the last, then says that it is done."""

    def __init__(self, turns: int, delay_seconds: float):
        self.turns, self.delay_seconds = turns, delay_seconds
        self.numbers = itertools.count()
        self.spent_seconds = 0.0
        self.asked = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # a caller may go away between two requests
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                match head.split(b" ", 2)[1].decode():
                    case "/spent":
                        spent, self.spent_seconds = self.spent_seconds, 0.0
                        writer.write(answer(json.dumps(spent * 1000).encode()))
                    case "/asked":
                        writer.write(answer(self.asked))
                    case _:
                        await self.complete(body, writer)
                await writer.drain()

    async def complete(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        """Answers a conversation, and counts the time from its last byte to the answer's first."""
        read = time.perf_counter()
        self.asked = body
        turn = self.turn(json.loads(body)["messages"])
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        whole = answer(json.dumps(turn).encode())
        # not after the writing: the caller may go on before that returns
        self.spent_seconds += time.perf_counter() - read
        writer.write(whole)

    def turn(self, messages: list[dict]) -> dict:
        done = sum(message["role"] == "assistant" for message in messages)
        message = {"role": "assistant", "content": "done"}
        if done < self.turns - 1:
            message = {"role": "assistant", "content": None, "tool_calls": [self.call(done)]}
        reason = "tool_calls" if "tool_calls" in message else "stop"
        return {
            "object": "chat.completion",
            "model": NAME,
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5},
        }

    def call(self, done: int) -> dict:
        # interpret ends a run in which a model sends the very same call again and again
        arguments = json.dumps({"code": f"print(1+1)  # {done}"})
        function = {"name": "run_python", "arguments": arguments}
        return {"id": f"call_{next(self.numbers)}", "type": "function", "function": function}


def answer(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def main() -> None:
    turns, delay_seconds = int(sys.argv[1]), float(sys.argv[2])
    served = await asyncio.start_server(Server(turns, delay_seconds).serve, "127.0.0.1", 0, backlog=1024)
    print(served.sockets[0].getsockname()[1], flush=True)
    # the driver closes it, or is no more
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
