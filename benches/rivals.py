"""What interpreterd is measured beside: Jupyter's gateway, a bare kernel, a cold Python."""

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import websocket
from client import Client
from floor import IMPORTS
from jupyter_client.manager import KernelManager

SECONDS = 120


class Gateway:
    """A jupyter-kernel-gateway with its defaults, and one connection to it that is kept."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.address = ("127.0.0.1", free_port())
        command = [sys.executable, "-m", "jupyter", "kernelgateway", "--log-level=ERROR"]
        command += [f"--KernelGatewayApp.ip={self.address[0]}", f"--KernelGatewayApp.port={self.address[1]}"]
        with (folder / "log").open("w") as log:
            # nothing here needs root, so an allowance for it is harmless where the driver is root
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=rival_environ())
        self.log = folder / "log"
        self.client = self._connect()

    def _connect(self) -> Client:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                client = Client(self.address)
                client.call("GET", "/api").expect(200)
                return client
            except OSError:
                time.sleep(0.05)
        self.close()
        raise RuntimeError(f"the gateway did not start: {self.log.read_text()[-2000:]}")

    def start(self, quick_acks: bool = False) -> "GatewayKernel":
        kernel = self.client.call("POST", "/api/kernels", b'{"name": "python3"}').expect(201).json()["id"]
        return GatewayKernel(self, kernel, quick_acks)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


class GatewayKernel:
    """A kernel of the gateway, spoken to through its websocket."""

    def __init__(self, gateway: Gateway, kernel: str, quick_acks: bool = False):
        self.gateway, self.kernel, self.session = gateway, kernel, uuid.uuid4().hex
        self.quick_acks = quick_acks
        host, port = gateway.address
        url = f"ws://{host}:{port}/api/kernels/{kernel}/channels?session_id={self.session}"
        nodelay = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
        self.channels = websocket.create_connection(url, timeout=SECONDS, sockopt=nodelay)

    def run(self, code: str) -> str:
        """Runs a cell and gives its stdout, once its reply is there and the kernel is idle."""
        request = execute_request(self.session, code)
        self.channels.send(json.dumps(request))
        mine, said, replied, idle = request["header"]["msg_id"], "", False, False
        while not (replied and idle):
            message = json.loads(self._receive())
            if message["parent_header"].get("msg_id") != mine:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "execute_reply":
                replied = True
                assert content["status"] == "ok", content
            elif kind == "status":
                idle = idle or content["execution_state"] == "idle"
            elif kind == "stream":
                said += content["text"]
        return said

    def _receive(self) -> str | bytes:
        if self.quick_acks:
            # the kernel forgets it, so it is said before each message
            self.channels.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return self.channels.recv()

    def close(self) -> None:
        self.channels.close()
        self.gateway.client.call("DELETE", f"/api/kernels/{self.kernel}").expect(204)


class RawKernel:
    """An ipykernel over ZeroMQ with nothing between, started and spoken to by jupyter_client."""

    def __init__(self):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=rival_environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client = self.manager.client()
        self.client.start_channels()

    def first(self, code: str) -> str:
        """Runs the first cell and gives the value of its last line.

        The value comes with the reply: a subscription that is still being made may miss the output. It is also sent
        at once, without the fixed pause of `wait_for_ready`, which would only make the kernel look slower.
        """
        *rest, last = code.splitlines()
        mine = self.client.execute("\n".join(rest), user_expressions={"value": last})
        while True:
            reply = self.client.get_shell_msg(timeout=SECONDS)
            if reply["parent_header"].get("msg_id") == mine:
                assert reply["content"]["status"] == "ok", reply["content"]
                return reply["content"]["user_expressions"]["value"]["data"]["text/plain"]

    def run(self, code: str) -> str:
        """Runs a cell and gives its stdout, once its reply is there and the kernel is idle."""
        mine, said = self.client.execute(code), ""
        while True:
            reply = self.client.get_shell_msg(timeout=SECONDS)
            if reply["parent_header"].get("msg_id") == mine:
                assert reply["content"]["status"] == "ok", reply["content"]
                break
        while True:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") != mine:
                continue
            if message["msg_type"] == "stream":
                said += message["content"]["text"]
            elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return said

    def pid(self) -> int:
        return self.manager.provisioner.pid

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


def cold_python() -> None:
    """Starts a Python, imports what a session has ready, and runs the cell."""
    code = f"import {IMPORTS}; print(1+1)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=rival_environ()).stdout
    assert said == b"2\n", said


class IdlePython:
    """A Python of its own that has imported what a session has ready, and waits."""

    def __init__(self):
        command = [sys.executable, "-c", f"import {IMPORTS}; print(1+1, flush=True); input()"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=rival_environ())

    def ready(self) -> int:
        """Its process id, once it waits."""
        assert self.process.stdout.readline() == b"2\n"
        return self.process.pid

    def close(self) -> None:
        self.process.communicate(b"\n")


def execute_request(session: str, code: str) -> dict:
    """A message as the kernel's channels take it: Jupyter's messaging protocol 5."""
    header = {"msg_id": uuid.uuid4().hex, "username": "", "session": session, "msg_type": "execute_request"}
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    header["version"] = "5.3"
    return {
        "channel": "shell",
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "buffers": [],
    }


def rival_environ() -> dict[str, str]:
    """The environment without what a debugger's warning would cost."""
    return {name: value for name, value in os.environ.items() if not name.startswith("INTERPRETERD_")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
