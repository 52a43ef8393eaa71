"""What the back door orders to go wrong."""

import asyncio
import re

from aiohttp import web

from .errors import KINDS, injected

FIELDS = {"match", "times", "skip", "session", "status", "body", "type", "action", "after"}
ARGUMENTS = {"seconds": (int, float), "exception": str, "bytes": int, "text": str}
NEEDS = {
    "slow_head": "seconds",
    "slow_body": "seconds",
    "trickle": "seconds",
    "mid": "exception",
    "flood": "bytes",
    "huge": "bytes",
    "bare_error": "text",
}
OTHERS = "drop hang trunc bad_crc empty stall half_stall initial unknown_event two split garbage image silent"
ACTIONS = {*NEEDS, *OTHERS.split()}


class Faults:
    """The orders, each for a number of requests."""

    def __init__(self):
        self.orders = []

    def add(self, order):
        check(order)
        self.orders.append({"times": 1, "skip": 0, **order})

    def take(self, call):
        """The first order for this call, which counts as used; empty when there is none."""
        for order in self.orders:
            if order.get("session") not in (None, call.session_id) or not re.search(order["match"], call.title):
                continue
            if order["skip"] > 0:
                order["skip"] -= 1
                continue
            order["times"] -= 1
            if order["times"] <= 0:
                self.orders.remove(order)
            return order
        return {}


def check(order):
    action = order.get("action")
    needed = NEEDS.get(action)
    unknown = set(order) - FIELDS - {needed}
    if unknown or "match" not in order or ("status" in order) == ("action" in order):
        raise ValueError(f"not a fault: {order}")
    if "action" in order and action not in ACTIONS:
        raise ValueError(f"no such action: {action}")
    if needed and not isinstance(order.get(needed), ARGUMENTS[needed]):
        raise ValueError(f"{action} needs {needed}")
    if "status" in order and order["status"] not in KINDS:
        raise ValueError(f"no such status: {order['status']}")
    re.compile(order["match"])


async def apply(call, fault):
    """What comes instead of the answer; None when the answer may come."""
    action = fault.get("action")
    if "status" in fault:
        return injected(fault)
    if action == "hang":
        await asyncio.Event().wait()
    if action == "slow_head":
        await asyncio.sleep(fault["seconds"])
    if action == "drop":
        if call.request.transport:
            call.request.transport.abort()
        return web.Response()
    return None
