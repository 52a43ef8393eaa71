"""A Postgres of our own for as long as a scene takes: durable as it comes, on a socket in a folder."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

# a server does not run as root: this is Debian's and Red Hat's `nobody`
NOBODY = 65534
READY_SECONDS = 60


def programs() -> Path | None:
    """The folder of the newest Postgres of this machine; None without one."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).parent] if on_path else []
    found += sorted(
        (place.parent for place in Path("/usr/lib/postgresql").glob("*/bin/initdb")),
        key=lambda place: int(place.parent.name),
        reverse=True,
    )
    return found[0] if found else None


class Postgres:
    """A server with its own defaults, so with every commit on the disk before it is answered."""

    def __init__(self, folder: Path):
        found = programs()
        if found is None:
            raise FileNotFoundError("no initdb: install PostgreSQL (Debian: postgresql)")
        folder.mkdir()
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        if user:
            os.chown(folder, NOBODY, NOBODY)
        data, self.log = folder / "data", folder / "log"
        make = [found / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        subprocess.run(make, check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)
        serve = [found / "postgres", "-D", data, "-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(serve, cwd=folder, stdout=log, stderr=log, **user)
        self.url = f"postgres://postgres@localhost/postgres?host={quote(str(folder), safe='')}"
        try:
            self._wait(data / "postmaster.pid")
        except BaseException:
            self.close()
            raise

    def _wait(self, file: Path) -> None:
        """Until the server says in its file, on line 8, that it takes connections."""
        deadline = time.monotonic() + READY_SECONDS
        while not (file.exists() and file.read_text().splitlines()[7:8] == ["ready   "]):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Postgres did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def close(self) -> None:
        # SIGINT: connections are closed, data is written
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=120)
