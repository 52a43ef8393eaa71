"""The answer to an invoke: a stream with its result, or what a fault makes of it."""

import asyncio
import copy

from aiohttp import web

from . import eventstream, faults, tools
from .call import SESSION_HEADER
from .errors import ServiceError
from .eventstream import event
from .identifiers import ulid

TRICKLE = 0.1  # seconds
FLOOD_EVENT = 64 * 1024
SPLIT = 7
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PAGE = {"uri": "file:///page.html", "type": "text", "mimeType": "text/html", "text": "<b>html</b>"}
EXTRA = [{"type": "image", "mimeType": "image/png", "data": PIXEL}, {"type": "resource", "resource": PAGE}]


class Stream:
    """The chunked response; its head goes out with the first frame, or before."""

    def __init__(self, call, work):
        self.call, self.work = call, work
        headers = {SESSION_HEADER: call.session_id, "x-amzn-requestid": ulid()}
        self.response = web.StreamResponse(headers=headers)
        self.response.content_type = "application/vnd.amazon.eventstream"
        self.response.enable_chunked_encoding()

    async def head(self):
        if not self.response.prepared:
            await self.response.prepare(self.call.request)

    async def send(self, data):
        await self.head()
        await self.response.write(data)

    async def result(self):
        """The true one; the work goes on when the client goes away."""
        return await asyncio.shield(self.work())


async def answer(service, call, fault):
    """Does the work that the fault leaves to do, and answers as the fault says."""
    session = service.session_of(call)
    tools.check(call)
    session.check_ready()
    session.check_free()
    if tools.never_ends(call):
        await never_end(session)
    work = Work(service, session, call)
    action = fault.get("action")
    if fault.get("after"):
        await asyncio.shield(work())
        if (instead := await faults.apply(call, fault)) is not None:
            return instead
    stream = Stream(call, work)
    try:
        await ACTIONS.get(action, plain)(stream, fault)
    except ServiceError as error:
        if not stream.response.prepared:
            raise
        member = error.kind[0].lower() + error.kind[1:]
        await stream.send(eventstream.exception(member, str(error)))
    await stream.response.write_eof()
    return stream.response


class Work:
    """The tool's work, begun with the first call, in a task of the service."""

    def __init__(self, service, session, call):
        self.service, self.session, self.call = service, session, call
        self.task = None

    def __call__(self):
        if self.task is None:
            self.session.calls += 1
            self.task = self.service.begin(tools.do(self.session, self.call, self.service.count_executed))
            self.task.add_done_callback(self.end)
        return self.task

    def end(self, _):
        self.session.calls -= 1


async def never_end(session):
    session.calls += 1
    try:
        async with session.call():
            await asyncio.Event().wait()
    finally:
        session.calls -= 1


async def plain(stream, fault):
    await stream.send(event(await stream.result()))


async def slow_body(stream, fault):
    stream.work()
    await stream.head()
    await asyncio.sleep(fault["seconds"])
    await plain(stream, fault)


async def trickle(stream, fault):
    stream.work()
    loop = asyncio.get_running_loop()
    end = loop.time() + fault["seconds"]
    await stream.head()
    while loop.time() < end:
        await stream.send(eventstream.unknown_event())
        await asyncio.sleep(TRICKLE)
    await plain(stream, fault)


async def mid(stream, fault):
    name, message = fault["exception"], f"injected {fault['exception']}"
    await stream.send(eventstream.error(message) if name == "error" else eventstream.exception(name, message))


async def half(stream, fault):
    data = event(await stream.result())
    await stream.send(data[: len(data) // 2])


async def bad_crc(stream, fault):
    await stream.send(event(await stream.result(), wrong=1))


async def empty(stream, fault):
    await stream.head()


async def stall(stream, fault):
    await stream.head()
    await asyncio.Event().wait()


async def half_stall(stream, fault):
    await half(stream, fault)
    await asyncio.Event().wait()


async def initial(stream, fault):
    data = event(await stream.result())
    await stream.send(event({}, "initial-response"))
    await stream.send(data)


async def unknown_event(stream, fault):
    data = event(await stream.result())
    await stream.send(eventstream.unknown_event())
    await stream.send(data)


async def two(stream, fault):
    for part in halves(await stream.result()):
        await stream.send(event(part))


def halves(result):
    """The scalars are in the second, what can be put together again is in both."""
    first, second = {"content": []}, copy.copy(result)
    content, structured = result["content"], result.get("structuredContent")
    if structured is None:
        middle = len(content) // 2
        first["content"], second["content"] = content[:middle], content[middle:]
        return first, second
    if "stdout" in structured:
        start, end = split_text(structured["stdout"])
        first["structuredContent"] = {"stdout": start}
        second["structuredContent"] = {**structured, "stdout": end}
    if content and content[0]["type"] == "text":
        start, end = split_text(content[0]["text"])
        first["content"] = [tools.text(start)]
        second["content"] = [tools.text(end), *content[1:]]
    return first, second


def split_text(text):
    middle = len(text) // 2
    return text[:middle], text[middle:]


async def split(stream, fault):
    data = event(await stream.result())
    for start in range(0, len(data), SPLIT):
        await stream.send(data[start : start + SPLIT])


async def garbage(stream, fault):
    await stream.send(b"<html><body>502 Bad Gateway</body></html>\n" * 20)


async def flood(stream, fault):
    sent, data = 0, eventstream.unknown_event(FLOOD_EVENT)
    while sent < fault["bytes"]:
        await stream.send(data)
        sent += len(data)


async def huge(stream, fault):
    text = "x" * fault["bytes"]
    structured = {"stdout": text, "stderr": "", "exitCode": 0, "executionTime": 0.0}
    await stream.send(event(tools.result([tools.text(text)], structured)))


async def image(stream, fault):
    result = await stream.result()
    await stream.send(event({**result, "content": [*result["content"], *EXTRA]}))


async def bare_error(stream, fault):
    await stream.send(event(tools.refusal(fault["text"])))


async def silent(stream, fault):
    result = await stream.result()
    await stream.send(event(tools.result([tools.text("")], failed=result["isError"])))


ACTIONS = {
    "slow_body": slow_body,
    "trickle": trickle,
    "mid": mid,
    "trunc": half,
    "bad_crc": bad_crc,
    "empty": empty,
    "stall": stall,
    "half_stall": half_stall,
    "initial": initial,
    "unknown_event": unknown_event,
    "two": two,
    "split": split,
    "garbage": garbage,
    "flood": flood,
    "huge": huge,
    "image": image,
    "bare_error": bare_error,
    "silent": silent,
}
