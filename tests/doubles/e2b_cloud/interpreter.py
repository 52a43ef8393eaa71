"""Port 49999: contexts and /execute."""

import asyncio
import json
import re

from aiohttp import web

from .validate import is_strings

LANGUAGES = {"js": "javascript", "ts": "typescript"}
CONTEXT_PATH = re.compile(r"^/contexts/([^/]+)(/restart)?$")
END = b'{"type": "end_of_execution"}\n'


async def handle(request, sandbox):
    if request.path == "/health" and request.method == "GET":
        return web.json_response("OK")
    if request.path == "/execute" and request.method == "POST":
        return await execute(request, sandbox)
    if request.path == "/contexts" and request.method == "GET":
        return web.json_response([context.describe() for context in sandbox.contexts.values()])
    if request.path == "/contexts" and request.method == "POST":
        return await create_context(request, sandbox)
    found = CONTEXT_PATH.match(request.path)
    if found and request.method == ("POST" if found[2] else "DELETE"):
        return await change_context(sandbox, *found.groups())
    known = found or request.path in ("/health", "/execute", "/contexts")
    status, detail = (405, "Method Not Allowed") if known else (404, "Not Found")
    return web.json_response({"detail": detail}, status=status)


async def execute(request, sandbox):
    body, refusal = await read_body(request, {"code": (str,)}, {"context_id": (str,), "language": (str,)})
    if refusal:
        return refusal
    if body.get("env_vars") is not None and not is_strings(body["env_vars"]):
        return unprocessable("string_type", "env_vars", "Input should be a valid string")
    if body.get("context_id") and body.get("language"):
        return plain(400, "Only one of context_id or language can be provided")
    if language := body.get("language"):
        context = sandbox.default if normal(language) == "python" else None
        if context is None:
            return no_such_kernel(language)
    else:
        context = sandbox.contexts.get(body["context_id"]) if body.get("context_id") else sandbox.default
    if context is None or context.id not in sandbox.contexts:
        return plain(404, f"Context {body.get('context_id')} not found")
    if context.language != "python":
        return no_such_kernel(context.language)
    return await stream(request, context, body)


async def stream(request, context, body):
    """The head at once; the lines when it is this run's turn."""
    fault = request["fault"]
    if "lines" in fault:
        return await scripted(request, fault)
    response = head()
    await response.prepare(request)
    sent = 0
    token = request.headers.get("X-Access-Token")
    events = context.execute(body["code"], body.get("env_vars"), token)
    end = events.aclose
    try:
        async for lines in events:
            lines = spoiled(lines, fault, sent)
            sent += len(lines)
            if lines:
                await response.write(b"\n".join(lines) + b"\n")
            if fault.get("action") == "cut" and sent >= fault.get("after", 0):
                end = context.noticing(events)
                request.transport.abort()
                return response
    finally:
        await end()
    if fault.get("action") != "no_end":
        await response.write(END)
    await response.write_eof()
    return response


def head():
    response = web.StreamResponse(headers={"Server": "uvicorn"})
    response.no_content_type = True
    response.enable_chunked_encoding()
    return response


def spoiled(lines, fault, sent):
    if fault.get("action") == "cut":
        return lines[: max(0, fault.get("after", 0) - sent)]
    if fault.get("action") == "garbage" and sent == 0:
        return [*lines[:1], b"\x00this is not JSON {", *lines[1:]]
    return lines


async def scripted(request, fault):
    """Sends the lines of a fault in place of a run."""
    response = head()
    await response.prepare(request)
    for line in fault["lines"]:
        text = line if isinstance(line, str) else json.dumps(line)
        await response.write(text.encode() + b"\n")
    if fault.get("action") in ("hang", "head_only_hang"):
        await asyncio.Event().wait()
    elif fault.get("action") in ("cut", "reset"):
        request.transport.abort()
    else:
        await response.write_eof()
    return response


async def create_context(request, sandbox):
    body, refusal = await read_body(request, {}, {"cwd": (str,), "language": (str,)})
    if refusal:
        return refusal
    language = normal(body.get("language") or "python")
    if language != "python":
        return no_such_kernel(language)
    context = await sandbox.add_context(language, body.get("cwd") or "/home/user")
    return web.json_response(context.describe())


async def change_context(sandbox, name, restart):
    context = sandbox.contexts.get(name)
    if context is None:
        return plain(404, f"Context {name} not found")
    if restart:
        if context.language == "python":
            await context.restart()
    else:
        del sandbox.contexts[name]
        context.stop()
    return web.json_response(None)


async def read_body(request, required, optional):
    if request.headers.get("Content-Type") and request.content_type != "application/json":
        return None, unprocessable("model_attributes_type", None, "Input should be a valid dictionary")
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        return None, unprocessable("json_invalid", 0, f"JSON decode error: {error}")
    if not isinstance(body, dict):
        return None, unprocessable("model_attributes_type", None, "Input should be a valid dictionary")
    for name, kinds in {**required, **optional}.items():
        if name in required and name not in body:
            return None, unprocessable("missing", name, "Field required")
        value = body.get(name)
        if not isinstance(value, kinds) and not (name in optional and value is None):
            return None, unprocessable("string_type", name, "Input should be a valid string")
    return body, None


def normal(language):
    language = language.lower().strip()
    return LANGUAGES.get(language, language)


def no_such_kernel(language):
    reason = json.dumps({"message": f"No such kernel: {language}", "reason": None})
    return plain(500, f"Failed to create context: {reason}")


def unprocessable(kind, name, message):
    place = ["body"] if name is None else ["body", name]
    return web.json_response({"detail": [{"type": kind, "loc": place, "msg": message}]}, status=422)


def plain(status, text):
    return web.Response(status=status, text=text)
