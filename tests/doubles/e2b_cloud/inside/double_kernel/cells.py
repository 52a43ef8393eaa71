"""Runs cells one after another and keeps their variables."""

import binascii
import builtins
import json
import os
import signal
import sys
import types

from . import hooks, results
from .output import Output, Stream

AWAITS = 0x80  # CO_COROUTINE


class StdinNotImplementedError(NotImplementedError):
    """As ipykernel has it."""


class Kernel:
    """Reads requests from the channel, one line of JSON each, and answers with the lines of /execute."""

    def __init__(self, channel):
        self.requests = os.fdopen(os.dup(channel), "rb", closefd=False)
        self.output = Output(channel)
        self.process = os.getpid()
        self.count = 0
        self.running = self.leaving = False
        self.files = {}  # name of a cell's file: the cell's number
        self.after_cell = []
        self.loop = None
        self.prepare()

    def prepare(self):
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        self.names = main.__dict__
        self.names.update(__builtins__=builtins, In=[""], Out={}, display=self.display, _="", __="", ___="")
        self.names.update(exit=self.leave, quit=self.leave, get_ipython=lambda: None)
        builtins.display = self.display
        builtins.input = refuse_input
        sys.argv = [""]
        sys.stdout, sys.stderr = Stream(self.output, "stdout", 1), Stream(self.output, "stderr", 2)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        hooks.install(self)
        signal.signal(signal.SIGINT, self.on_interrupt)

    def serve(self):
        self.output.send({"ready": True})
        import ast  # noqa: F401 - while the kernel waits for its first cell

        while line := self.requests.readline():
            request = json.loads(line)
            self.cell(request["code"], request.get("silent", False))
            if os.getpid() != self.process:
                os._exit(0)  # a child that the cell forked
            self.output.send({"end": True})
            if self.leaving:
                os._exit(0)
        os._exit(0)

    def leave(self, *_):
        """`exit()` in a kernel: the cell goes on to its end, the kernel does not."""
        self.leaving = True

    def on_interrupt(self, *_):
        if self.running:
            raise KeyboardInterrupt

    def cell(self, code, silent):
        if not silent:
            self.count += 1
            self.output.send({"type": "number_of_executions", "execution_count": self.count})
            self.names["In"].append(code)
        self.output.silent = silent
        try:
            try:
                self.running = True
                self.execute(code)
                for task in self.after_cell:
                    task()
            finally:
                self.running = False
        except BaseException as error:  # whatever user code raises
            self.report(error)
        self.output.drain()
        self.output.silent = False

    def report(self, error):
        from . import tracebacks

        if isinstance(error, SystemExit):
            print("UserWarning: To exit: use 'exit', 'quit', or Ctrl-D.", file=sys.stderr)
        self.output.drain()
        self.output.send({"type": "error", **tracebacks.describe(error, self.files)})

    def execute(self, code):
        import ast

        source, tree = self.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self.evaluate(tree, source.name, "exec")
        if last is not None:
            value = self.evaluate(ast.Expression(last.value), source.name, "eval")
            if value is not None and not code.rstrip().endswith(";"):
                self.remember(value)

    def parse(self, code):
        import ast
        import linecache

        source = Source(code)
        self.files[source.name] = self.count
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        linecache.cache[source.name] = (len(code), None, source.lines(), source.name)
        try:
            return source, compile(source.text, source.name, "exec", flags)
        except SyntaxError:
            from . import magics

            source.text = magics.translate(source.text)
            self.names.setdefault("_run_magic", lambda *call: magics.run(self, *call))
            return source, compile(source.text, source.name, "exec", flags)

    def evaluate(self, tree, name, mode):
        import ast

        compiled = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        loop = self.event_loop(compiled)
        if compiled.co_flags & AWAITS:
            return loop.run_until_complete(eval(compiled, self.names))
        if loop is None:
            return eval(compiled, self.names)
        import asyncio

        asyncio._set_running_loop(loop)  # in a kernel a loop runs always: asyncio.run() is refused
        try:
            return eval(compiled, self.names)
        finally:
            asyncio._set_running_loop(None)

    def event_loop(self, compiled):
        """The kernel's loop, once a cell has to do with asyncio."""
        if self.loop is None and (
            compiled.co_flags & AWAITS or "asyncio" in sys.modules or "asyncio" in compiled.co_names
        ):
            import asyncio

            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop

    def remember(self, value):
        names = self.names
        names["___"], names["__"], names["_"] = names["__"], names["_"], value
        names["Out"][self.count] = names[f"_{self.count}"] = value
        self.show(value, main=True)

    def display(self, *values, raw=False, **_):
        for value in values:
            self.show(value, main=False, raw=raw)

    def show(self, value, main, raw=False):
        fields = results.from_mime(value) if raw else results.of(value)
        self.output.drain()
        self.output.send({"type": "result", **fields, "is_main_result": main})


class Source:
    """A cell's text, under the name that its file would have."""

    def __init__(self, code):
        self.text = undented(code)
        self.name = f"/tmp/ipykernel_{os.getpid()}/{binascii.crc32(code.encode('utf-8', 'replace'))}.py"

    def lines(self):
        return [line + "\n" for line in self.text.split("\n")]


def undented(code):
    """A cell that is indented as a whole runs all the same."""
    first = next((line for line in code.split("\n") if line.strip()), "")
    if not first[:1].isspace():
        return code
    import textwrap

    return textwrap.dedent(code)


def refuse_input(*_):
    raise StdinNotImplementedError("raw_input was called, but this frontend does not support input requests.")
