"""The kernel: runs cells, one after another, for the double that started it.

usage: worker.py DESCRIPTOR plain|thread|ipython. A message is four bytes of length and JSON: of the double
{"code", "clear"}, of the kernel {"stdout", "stderr", "exitCode", "executionTime"}.
"""

import contextlib
import io
import json
import os
import struct
import sys
import threading
import time
import traceback


class Channel:
    """The socket to the double, on a descriptor that programs started by cells do not have."""

    def __init__(self, descriptor):
        os.set_inheritable(descriptor, False)
        self.descriptor, self.owner = descriptor, os.getpid()

    def receive(self):
        """The next message; None after the last."""
        head = self.read(4)
        body = self.read(struct.unpack(">I", head)[0]) if head else None
        return json.loads(body) if body else None

    def read(self, size):
        pieces = []
        while size and (piece := os.read(self.descriptor, min(size, 1 << 20))):
            pieces.append(piece)
            size -= len(piece)
        return None if size else b"".join(pieces)

    def send(self, message):
        if os.getpid() != self.owner:  # a cell forked: the answer is not the child's to give
            os._exit(0)
        body = json.dumps(message).encode()
        rest = memoryview(struct.pack(">I", len(body)) + body)
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]


class Plain:
    """Cells in a dictionary."""

    def __init__(self):
        self.clear()

    def clear(self):
        self.names = {"__name__": "__main__"}

    def run(self, code):
        """Gives the exit code."""
        try:
            exec(compile(code, "<cell>", "exec"), self.names)
        except SystemExit as end:
            return exit_code(end)
        except BaseException as error:
            # without the line of this file
            traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
            return 1
        return 0


def exit_code(end):
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


class IPython:
    """Cells in IPython, as ipykernel runs them: inside a running event loop."""

    def __init__(self):
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        settings = Config()
        settings.HistoryManager.enabled = False
        self.shell = InteractiveShell.instance(config=settings, colors="nocolor")
        # what goes to the client in messages of their own becomes part of the streams
        self.shell._showtraceback = lambda kind, error, lines: print("\n".join(lines), file=sys.stderr)
        self.shell.displayhook.write_output_prompt = lambda: None

    def clear(self):
        self.shell.reset(new_session=False)

    async def run(self, code):
        transformed, failure = code, None
        try:
            transformed = self.shell.transform_cell(code)
        except Exception:
            failure = sys.exc_info()
        if failure is None and self.shell.should_run_async(code, transformed_cell=transformed):
            result = await self.shell.run_cell_async(
                code, store_history=True, transformed_cell=transformed, preprocessing_exc_tuple=failure
            )
        else:
            result = self.shell.run_cell(code, store_history=True)
        return 0 if result.success else 1


@contextlib.contextmanager
def captured(answer):
    """Fills in the answer what a cell writes to sys.stdout and sys.stderr, and how long it took."""
    output, problems = io.StringIO(), io.StringIO()
    began = time.perf_counter()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(problems):
        yield
    answer["executionTime"] = time.perf_counter() - began
    for name, stream in (("stdout", output), ("stderr", problems)):
        answer[name] = stream.getvalue().encode("utf-8", "replace").decode()


def serve(channel, kernel):
    while message := channel.receive():
        answer = {}
        with captured(answer):
            if message["clear"]:
                kernel.clear()
            answer["exitCode"] = kernel.run(message["code"])
        channel.send(answer)


async def serve_in_loop(channel, kernel):
    # a thread waits for messages, so that the tasks of cells go on between cells
    while message := await asyncio.to_thread(channel.receive):
        answer = {}
        with captured(answer):
            if message["clear"]:
                kernel.clear()
            answer["exitCode"] = await kernel.run(message["code"])
        channel.send(answer)


def main():
    channel, kind = Channel(int(sys.argv[1])), sys.argv[2]
    sys.argv, sys.path[0] = [""], ""
    if kind == "ipython":
        asyncio.run(serve_in_loop(channel, IPython()))
    elif kind == "thread":
        thread = threading.Thread(target=serve, args=(channel, Plain()))
        thread.start()
        thread.join()
    else:
        serve(channel, Plain())


if __name__ == "__main__":
    if sys.argv[2] == "ipython":
        import asyncio  # slow to import
    main()
