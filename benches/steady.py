"""Sessions in which cells run at a steady pace, from a process beside the driver."""

import heapq
import multiprocessing
import random
import selectors
import time
from multiprocessing.synchronize import Event

import client
import load
from service import exec_path


class Steady:
    """Runs cells until it is closed: so many a second in all, each session after rests by lot."""

    def __init__(self, address: tuple[str, int], sessions: list[str], code: str, cells_a_second: float):
        fork = multiprocessing.get_context("fork")
        self.enough, self.found = fork.Event(), fork.SimpleQueue()
        orders = [client.request("POST", exec_path(session), client.encode({"code": code})) for session in sessions]
        rest = len(sessions) / cells_a_second
        self.process = fork.Process(target=run, args=(address, orders, rest, self.enough, self.found))
        self.began = time.perf_counter()
        self.process.start()

    def close(self) -> float:
        """Ends it; gives how many cells a second there were."""
        self.enough.set()
        count = self.found.get()
        seconds = time.perf_counter() - self.began
        self.process.join(timeout=60)
        if count is None:
            raise AssertionError("a cell beside the measured ones failed")
        return count / seconds


def run(address: tuple[str, int], orders: list[bytes], rest: float, enough: Event, found) -> None:
    """The process: it leaves by itself when nobody wants it any more."""
    try:
        found.put(pace(address, orders, rest, enough))
    except BaseException:
        found.put(None)
        raise


def pace(address: tuple[str, int], orders: list[bytes], rest: float, enough: Event) -> int:
    dice, count = random.Random(0), 0
    lanes = [load.Lane(one(order), client.connect(address)) for order in orders]
    started = time.perf_counter()
    due = [(started + dice.expovariate(1 / rest), place) for place in range(len(lanes))]
    heapq.heapify(due)
    waiting = 0
    with selectors.DefaultSelector() as selector:
        for place, lane in enumerate(lanes):
            selector.register(lane.socket, selectors.EVENT_READ, place)
        while not enough.is_set() or waiting:
            now = time.perf_counter()
            while due and due[0][0] <= now and not enough.is_set():
                lane = lanes[heapq.heappop(due)[1]]
                lane.socket.sendall(next(lane.caller))
                waiting += 1
            # short waits: it must see when it is to end
            left = min(0.05, max(0.0, due[0][0] - now)) if due else 0.05
            for key, _ in selector.select(timeout=left):
                if load.go_on(lanes[key.data]):
                    continue
                count, waiting = count + 1, waiting - 1
                lanes[key.data].caller = one(orders[key.data])
                heapq.heappush(due, (time.perf_counter() + dice.expovariate(1 / rest), key.data))
    for lane in lanes:
        lane.socket.close()
    return count


def one(order: bytes) -> load.Caller:
    answer = yield order
    assert answer.status == 200 and b'"status":"success"' in answer.body, answer
