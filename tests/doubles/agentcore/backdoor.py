"""The tests' own entrance: /_double/faults, requests, sessions, stats, kill_session, kill_kernel."""

import re

from aiohttp import web


async def handle(service, request):
    call = (request.method, request.path.removeprefix("/_double/"))
    if call == ("POST", "faults"):
        return await add_fault(service, request)
    if call in (("GET", "faults"), ("DELETE", "faults")):
        return listed(service.faults.orders, request)
    if call in (("GET", "requests"), ("DELETE", "requests")):
        return listed(service.log, request)
    if call == ("GET", "sessions"):
        return web.json_response([describe(session) for session in service.sessions.values()])
    if call == ("GET", "stats"):
        return web.json_response({"executed": service.executed, "calls": dict(service.calls)})
    if call in (("POST", "kill_session"), ("POST", "kill_kernel")):
        return await kill(service, await request.json(), call[1])
    return web.json_response({"message": "no such back door"}, status=404)


def listed(entries, request):
    answer = web.json_response(list(entries))
    if request.method == "DELETE":
        entries.clear()
    return answer


async def add_fault(service, request):
    try:
        service.faults.add(await request.json())
    except (ValueError, TypeError, AttributeError, re.error) as error:
        return web.json_response({"message": str(error)}, status=400)
    return web.json_response({})


async def kill(service, body, what):
    session = service.sessions.get(body.get("id"))
    if session is None:
        return web.json_response({"message": "no such session"}, status=404)
    if what == "kill_session":
        session.terminate()
    elif session.kernel.pid is None:
        return web.json_response({"message": "no kernel"}, status=404)
    else:
        await session.kernel.kill()
    return web.json_response({})


def describe(session):
    return {
        "sessionId": session.id,
        "name": session.name,
        "status": session.status,
        "codeInterpreterIdentifier": session.identifier,
        "sessionTimeoutSeconds": session.seconds,
        "kernelPid": session.kernel.pid,
        "folder": session.folder.root,
    }
