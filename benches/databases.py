"""The databases that a store can be on, each with a data folder of its own."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import machine
import names
import postgres
from bench import Bench
from service import Service


@dataclass
class Place:
    """A database and a data folder."""

    bench: Bench
    name: str
    data: Path
    # none: SQLite in the data folder
    url: str | None

    def service(self) -> Service:
        """The service on it; what is measured needs no pool."""
        # nothing is forgotten meanwhile
        env = {"INTERPRETERD_RETENTION_SECONDS": "31536000"}
        if self.url:
            env["INTERPRETERD_DATABASE_URL"] = self.url
        return self.bench.service(pool=False, env=env, data=self.data)

    def filled(self) -> list[dict]:
        """Runs that the benchmark of the store has put there, in the order in which they were made."""
        return json.loads((self.data / "filled.json").read_text())["known"]


def places(bench: Bench, stack: contextlib.ExitStack) -> list[Place]:
    """SQLite, and Postgres where there is one, with nothing in them."""
    urls: dict[str, str | None] = {names.SQLITE: None}
    if postgres.programs():
        server = stack.enter_context(contextlib.closing(postgres.Postgres(bench.fresh("postgres"))))
        urls[names.POSTGRES] = server.url
    else:
        bench.note("there is no PostgreSQL on this machine: SQLite alone")
    kind = machine.kind_of_files(bench.folder)
    if kind in ("tmpfs", "ramfs"):
        bench.note(f"the databases are on {kind}, which is no disk: set TMPDIR to a folder that is on one")
    found = [Place(bench, name, bench.fresh("data"), url) for name, url in urls.items()]
    for place in found:
        # the service makes the folder its user's, and the tables
        with place.service():
            pass
    return found
