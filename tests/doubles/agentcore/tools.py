"""The nine tools of a session."""

import asyncio

from .commands import COMMAND_AT_MOST, Task, run
from .errors import invalid
from .files import FileRefusal


def text(content):
    return {"type": "text", "text": content}


def refusal(message):
    """A tool that did not do it: no structured content."""
    return {"content": [text(message)], "isError": True}


def result(content, structured=None, failed=False):
    found = {"content": content, "isError": failed}
    return found if structured is None else {**found, "structuredContent": structured}


def check(call):
    """Refuses, before anything is done, what no tool understands."""
    if not isinstance(call.tool, str) or call.tool not in TOOLS:
        raise invalid("name", f"unknown tool {call.tool!r}")
    for name in ("code", "command", "taskId"):
        if not isinstance(call.arguments.get(name, ""), str):
            raise invalid(f"arguments.{name}", "must be a string")
    if not isinstance(call.arguments.get("paths", []), list):
        raise invalid("arguments.paths", "must be a list")


def never_ends(call):
    """A command that is too long hangs, as observed in the real service."""
    return call.tool == "executeCommand" and len(call.arguments.get("command", "").encode()) > COMMAND_AT_MOST


async def do(session, call, on_executed):
    """The result of a tool, whatever comes of it."""
    async with session.call():
        if call.tool == "executeCode":
            return await execute_code(session, call.arguments, on_executed)
        try:
            return await TOOLS[call.tool](session, call.arguments)
        except FileRefusal as error:
            return refusal(str(error))


async def execute_code(session, arguments, on_executed):
    language = arguments.get("language", "python")
    if language != "python":
        return refusal(f"Unsupported language: {language}")
    code, clear = arguments.get("code", ""), bool(arguments.get("clearContext"))
    answer = await session.kernel.execute(code, clear, on_executed)
    if answer is None:
        return refusal("kernel is not running")
    limit = session.options.stdout_limit
    if limit is not None:
        answer = {**answer, "stdout": answer["stdout"].encode()[:limit].decode("utf-8", "ignore")}
    return outcome(answer)


def outcome(answer):
    failed = answer["exitCode"] != 0
    shown = answer["stdout"] + (answer["stderr"] if failed else "")
    return result([text(shown)], answer, failed)


async def execute_command(session, arguments):
    answer = await run(session.guest, session.home, arguments.get("command", ""), session.options.pty)
    return outcome(answer)


async def start_command(session, arguments):
    task = Task(session.home)
    try:
        await task.start(session.guest, session.home, arguments.get("command", ""))
    except OSError as error:
        return refusal(f"Failed to start the command: {error.strerror}")
    session.tasks[task.id] = task
    return result([text(f"Task {task.id} was submitted")], {"taskId": task.id, "taskStatus": "submitted"})


async def get_task(session, arguments):
    task = session.tasks.get(arguments.get("taskId"))
    if task is None:
        return refusal(f"Task not found: {arguments.get('taskId')}")
    described = await asyncio.to_thread(task.describe)
    return result([text(described["stdout"])], described)


async def stop_task(session, arguments):
    task = session.tasks.get(arguments.get("taskId"))
    if task is not None:
        await task.stop()
    return await get_task(session, arguments)


async def write_files(session, arguments):
    count = await asyncio.to_thread(session.folder.write, arguments.get("content", []))
    return result([text(f"Successfully wrote all {count} files")])


async def read_files(session, arguments):
    mode = session.options.read_files
    if mode == "none":
        return refusal("readFiles is not available")
    return result(await asyncio.to_thread(session.folder.read, arguments.get("paths", []), mode == "text"))


async def list_files(session, arguments):
    path = arguments.get("directoryPath") or arguments.get("path") or "."
    return result(await asyncio.to_thread(session.folder.list, path))


async def remove_files(session, arguments):
    count = await asyncio.to_thread(session.folder.remove, arguments.get("paths", []))
    return result([text(f"Successfully removed {count} files")])


TOOLS = {
    "executeCode": execute_code,
    "executeCommand": execute_command,
    "startCommandExecution": start_command,
    "getTask": get_task,
    "stopTask": stop_task,
    "writeFiles": write_files,
    "readFiles": read_files,
    "listFiles": list_files,
    "removeFiles": remove_files,
}
