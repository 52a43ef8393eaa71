"""The command line."""

import argparse
import dataclasses
import sys

DESCRIPTION = sys.modules[__package__].__doc__.partition("\n")[0]


@dataclasses.dataclass
class Options:
    """How this double behaves; `keys` are the teams by their keys, none: every key is a team."""

    port: int
    keys: dict
    domain: str | None
    templates: list
    default_timeout: int
    max_timeout: int
    max_sandboxes: int
    keepalive: float
    envd_version: str
    v2: bool
    python: str
    plain: bool
    tls: list | None
    create_rate: float
    restart_delay: float
    interrupt_window: float


def parse(arguments=None):
    parser = argparse.ArgumentParser(prog="e2b_cloud", description=DESCRIPTION)
    add = parser.add_argument
    add("--port", type=int, default=0, help="0 takes a free one")
    add("--api-key", action="append", default=[], metavar="KEY[=TEAM]", help="accept only these keys")
    add("--domain", help="value of `domain` in replies")
    add("--templates", default="code-interpreter-v1,base", help="names, separated by commas")
    add("--default-timeout", type=int, default=300, help="seconds, where a create names none (v1: at most 15)")
    add("--max-timeout", type=int, default=3600, help="seconds that a sandbox may live")
    add("--max-sandboxes", type=int, default=20, help="running at once, of one team")
    add("--keepalive", type=float, default=5.0, help="seconds of silence before a keepalive line")
    add("--envd-version", default="0.6.13")
    add("--no-v2", dest="v2", action="store_false", help="v2 routes answer 404")
    add("--python", default=sys.executable, help="the Python that runs kernels")
    add("--plain", action="store_true", help="no namespaces")
    add("--tls", nargs=2, metavar=("CERT", "KEY"), help="serve https with these PEM files")
    add("--create-rate", type=float, default=0, help="creates per second of one team; 0: no limit")
    add("--restart-delay", type=float, default=0.05, help="seconds from a kernel's death to ContextRestarting")
    add("--interrupt-window", type=float, default=0.15, help="seconds after a disconnect in which a run hangs")
    found = vars(parser.parse_args(arguments))
    found["keys"] = dict(team_of(entry) for entry in found.pop("api_key"))
    found["templates"] = found["templates"].split(",")
    return Options(**found)


def team_of(entry):
    key, _, team = entry.partition("=")
    return key, team or key
