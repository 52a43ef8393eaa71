"""Many callers at once from one process: epoll over raw sockets."""

import selectors
import socket
import time
from collections.abc import Generator
from dataclasses import dataclass, field

import client

# A caller gives the bytes of a request and is sent the answer to it, until it returns.
Caller = Generator[bytes, client.Answer, None]


@dataclass
class Lane:
    """A caller and the connection that it has to itself."""

    caller: Caller
    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)


@dataclass
class Drive:
    """How long it took, and how much of one processor the driver itself needed for it."""

    seconds: float
    driver_share: float


def drive(address: tuple[str, int], callers: list[Caller]) -> Drive:
    """Runs all callers to their end, each in a closed loop."""
    lanes = [Lane(caller, client.connect(address)) for caller in callers]
    started, used = time.perf_counter(), time.process_time()
    with selectors.DefaultSelector() as selector:
        for lane in lanes:
            selector.register(lane.socket, selectors.EVENT_READ, lane)
            lane.socket.sendall(next(lane.caller))
        while selector.get_map():
            ready = selector.select(timeout=120)
            if not ready:
                raise TimeoutError("no answer for two minutes")
            for key, _ in ready:
                if not go_on(key.data):
                    selector.unregister(key.data.socket)
    seconds = time.perf_counter() - started
    for lane in lanes:
        lane.socket.close()
    return Drive(seconds, (time.process_time() - used) / seconds)


def go_on(lane: Lane) -> bool:
    """Takes what came and sends the next request; says whether there was one."""
    part = lane.socket.recv(1 << 18)
    if not part:
        raise ConnectionError("the connection ended before the answer did")
    lane.received += part
    answer = client.parse(lane.received)
    if answer is None:
        return True
    lane.received.clear()
    try:
        lane.socket.sendall(lane.caller.send(answer))
    except StopIteration:
        return False
    return True
