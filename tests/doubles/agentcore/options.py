"""The command line."""

import argparse
import dataclasses
import sys

DESCRIPTION = sys.modules[__package__].__doc__.partition("\n")[0]
SYSTEM_INTERPRETER = "aws.codeinterpreter.v1"


@dataclasses.dataclass
class Options:
    """How this double behaves."""

    port: int
    secret: str
    region: str | None
    python: str | None
    interpreters: list
    max_sessions: int
    kernel: str
    calls: str
    pty: bool
    read_files: str
    dead_kernel: str
    stdout_limit: int | None


def parse(arguments=None):
    parser = argparse.ArgumentParser(prog="agentcore", description=DESCRIPTION)
    add = parser.add_argument
    add("--port", type=int, default=0, help="0 takes a free one")
    add("--secret", default="SECRETTEST", help="secret access key of every key id")
    add("--region", help="accept only credentials scoped to it")
    add("--python", help="the Python that runs kernels")
    add("--interpreter", dest="interpreters", action="append", metavar="ID", help=f"default: {SYSTEM_INTERPRETER}")
    add("--max-sessions", type=int, default=1000, help="ready at once")
    add("--kernel", choices=("plain", "thread", "ipython"), default="plain", help="what runs cells")
    add("--calls", choices=("parallel", "conflict", "queue"), default="parallel", help="a second call in a session")
    add("--no-pty", dest="pty", action="store_false", help="commands have pipes, and their own exit codes")
    add("--read-files", choices=("all", "text", "none"), default="all", help="what readFiles can read")
    add("--dead-kernel", choices=("restart", "broken"), default="restart", help="after a kernel's death")
    add("--stdout-limit", type=int, metavar="BYTES", help="of executeCode")
    found = vars(parser.parse_args(arguments))
    found["interpreters"] = found["interpreters"] or [SYSTEM_INTERPRETER]
    return Options(**found)
