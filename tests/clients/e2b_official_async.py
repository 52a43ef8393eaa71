"""The asynchronous classes of E2B's clients, on the main paths. e2b_official.py runs this."""

import asyncio

import e2b
from e2b import CommandExitException
from e2b_code_interpreter import AsyncSandbox


async def main():
    boxes = await asyncio.gather(*(AsyncSandbox.create(timeout=120, envs={"N": str(n)}) for n in range(3)))
    try:
        await isolated(boxes)
        await one_at_a_time(boxes[0])
        await commands(boxes[0])
        await files(boxes[0])
        await watched(boxes[0])
        await paused(boxes[1])
    finally:
        assert await asyncio.gather(*(box.kill() for box in boxes)) == [True] * 3
    assert not await boxes[0].is_running()


async def isolated(boxes):
    """Three at once, each with its own variables and files."""
    write = "import os; n = os.environ['N']; open('/tmp/n', 'w').write(n); n"
    runs = await asyncio.gather(*(box.run_code(write) for box in boxes))
    assert [run.text for run in runs] == ["0", "1", "2"]
    assert [await box.files.read("/tmp/n") for box in boxes] == ["0", "1", "2"]


async def one_at_a_time(box):
    """Runs in one context wait for each other, other contexts do not."""
    other = await box.create_code_context()
    started = asyncio.Event()
    first = asyncio.create_task(
        box.run_code("import time; print('go'); time.sleep(0.3); x = 1", on_stdout=lambda _: started.set())
    )
    await started.wait()
    second = asyncio.create_task(box.run_code("x"))
    assert (await box.run_code("2", context=other)).text == "2" and not first.done()
    assert (await second).text == "1" and first.done()
    await box.remove_code_context(other)


async def commands(box):
    assert (await box.commands.run("echo out")).stdout == "out\n"
    handle = await box.commands.run("cat", background=True, stdin=True)
    await box.commands.send_stdin(handle.pid, "fed\n")
    await box.commands.close_stdin(handle.pid)
    assert (await handle.wait()).stdout == "fed\n"
    handle = await box.commands.run("exec sleep 600", background=True)
    await handle.disconnect()
    assert handle.pid in [process.pid for process in await box.commands.list()]
    assert await box.commands.kill(handle.pid)
    try:
        await box.commands.run("exit 7")
    except CommandExitException as error:
        assert error.exit_code == 7
    else:
        raise AssertionError("exit 7 was no error")


async def files(box):
    await box.files.write("/files/a", b"bytes")
    stream = await box.files.read("/files/a", format="stream")
    assert b"".join([piece async for piece in stream]) == b"bytes"
    assert [entry.name for entry in await box.files.list("/files")] == ["a"]
    assert await box.files.exists("/files/a") and not await box.files.exists("/files/b")


async def watched(box):
    seen = asyncio.Queue()
    watch = await box.files.watch_dir("/files", on_event=seen.put_nowait)
    await box.files.write("/files/w", "1")
    event = await asyncio.wait_for(seen.get(), 10)
    assert (event.name, event.type.value) == ("w", "create"), event
    await watch.stop()


async def paused(box):
    await box.run_code("kept = 1")
    await box.pause()
    again = await AsyncSandbox.connect(box.sandbox_id, timeout=60)
    assert (await again.run_code("kept")).text == "1"
    try:
        await AsyncSandbox.connect("i00000000000000000000")
    except e2b.NotFoundException:
        return
    raise AssertionError("an unknown sandbox was found")
