"""The tests' own entrance: /_double/faults, requests, sandboxes, kill_sandbox, reset."""

from aiohttp import web


async def handle(cloud, request):
    call = (request.method, request.path.removeprefix("/_double/"))
    if call == ("POST", "faults"):
        return await add_fault(cloud, request)
    if call == ("GET", "faults"):
        return web.json_response(cloud.faults.orders)
    if call == ("DELETE", "faults"):
        cloud.faults.orders.clear()
        return web.json_response({})
    if call in (("GET", "requests"), ("DELETE", "requests")):
        entries = list(cloud.log.entries)
        if request.method == "DELETE":
            cloud.log.entries.clear()
        return web.json_response(entries)
    if call == ("GET", "sandboxes"):
        return web.json_response([describe(sandbox) for sandbox in cloud.sandboxes.values()])
    if call == ("POST", "kill_sandbox"):
        sandbox = cloud.sandboxes.get((await request.json())["id"])
        if sandbox is None:
            return web.json_response({"message": "no such sandbox"}, status=404)
        await sandbox.kill()
        return web.json_response({})
    if call == ("POST", "reset"):
        await cloud.reset()
        return web.json_response({})
    return web.json_response({"message": "no such back door"}, status=404)


async def add_fault(cloud, request):
    try:
        cloud.faults.add(await request.json())
    except (ValueError, TypeError) as error:
        return web.json_response({"message": str(error)}, status=400)
    return web.json_response({})


def describe(sandbox):
    contexts = [context.describe() for context in sandbox.contexts.values()]
    tokens = {"envdAccessToken": sandbox.token, "trafficAccessToken": sandbox.traffic_token}
    return {**sandbox.detail(), **tokens, "team": sandbox.team, "key": sandbox.key, "contexts": contexts}
