"""All sessions, and the way of a request through the double."""

import asyncio
import collections
import traceback

from aiohttp import web

from . import backdoor, faults, signature, streams
from .call import Call
from .errors import ServiceError
from .identifiers import ulid
from .operations import OPERATIONS

LOG_AT_MOST = 500
CLOSE_AT_MOST = 2  # seconds


class Service:
    """What one process of the double holds."""

    def __init__(self, options, guest):
        self.options, self.guest = options, guest
        self.sessions = {}
        self.tokens = {}
        self.faults = faults.Faults()
        self.log = collections.deque(maxlen=LOG_AT_MOST)
        self.calls, self.executed = collections.Counter(), 0
        self.work = set()

    async def handle(self, request):
        if request.path.startswith("/_double/"):
            return await backdoor.handle(self, request)
        try:
            return await self.answer(request)
        except ServiceError as error:
            return error.response()
        except web.HTTPException:
            raise
        except ConnectionError:
            return web.Response()  # nobody is there to read it
        except Exception as error:
            traceback.print_exc()
            return ServiceError(500, f"double: {error!r}").response()

    async def answer(self, request):
        call = Call(request, await request.read())
        problem = signature.problem(request, call.raw, self.options.secret, self.options.region)
        if problem:
            raise ServiceError(403, problem)
        self.log.append(call.entry())
        self.count(call)
        fault = self.faults.take(call)
        if not fault.get("after") and (instead := await faults.apply(call, fault)) is not None:
            return instead
        call.check()
        if call.invokes:
            return await streams.answer(self, call, fault)
        found = self.operate(call)
        if fault.get("after") and (instead := await faults.apply(call, fault)) is not None:
            return instead
        return web.json_response(found, headers={"x-amzn-requestid": ulid()})

    def operate(self, call):
        operation = OPERATIONS.get((call.method, call.operation))
        if operation is None:
            raise ServiceError(404, f"no such operation: {call.title}", "UnknownOperationException")
        return operation(self, call)

    def count(self, call):
        self.calls[f"{call.method} {call.operation}"] += 1
        if call.invokes:
            self.calls[str(call.tool)] += 1

    def count_executed(self):
        self.executed += 1

    def session_of(self, call):
        session = self.sessions.get(call.session_id)
        if session is None or session.identifier != call.identifier:
            raise ServiceError(404, f"Code interpreter session {call.session_id} was not found")
        return session

    def begin(self, work):
        """Runs it to its end, whether or not somebody waits for that."""
        task = asyncio.create_task(work)
        self.work.add(task)
        task.add_done_callback(self.forget)
        return task

    def forget(self, task):
        self.work.discard(task)
        if not task.cancelled():
            task.exception()  # who waited has seen it

    async def close(self):
        for session in self.sessions.values():
            session.terminate()
        left = self.work | {session.ending for session in self.sessions.values()}
        if left:
            await asyncio.wait(left, timeout=CLOSE_AT_MOST)
