"""The benchmark of the store alone, `benches/store`: built by cargo, run as the owner of a data folder."""

import csv
import json
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ["cargo", "bench", "--locked", "--bench", "store", "--no-run", "--message-format=json"]


class StoreProgram:
    """Fills data folders, and measures stores in them."""

    def __init__(self, folder: Path):
        folder.mkdir()
        # the service's user may not look into the folder of who builds
        self.program, self.out = folder / "store", folder / "out.csv"
        shutil.copy(build(), self.program)

    def run(self, url: str | None, data: Path, *options: str) -> list[dict[str, str]]:
        """Runs on a data folder that exists; gives the rows that it wrote."""
        owner = data.stat()
        user = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        with self.out.open("w") as out:
            command = [self.program, "--database", url or "sqlite", "--data-dir", data, *options]
            subprocess.run(command, check=True, stdout=out, cwd=data, **user)
        with self.out.open(newline="") as out:
            return list(csv.DictReader(out))


def build() -> Path:
    """Builds it where it is not built yet; gives the program."""
    built = subprocess.run(BUILD, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    for line in built.stdout.splitlines():
        told = json.loads(line)
        if told["reason"] == "compiler-artifact" and told["target"]["name"] == "store" and told["executable"]:
            return Path(told["executable"])
    raise RuntimeError("cargo built no benchmark named store")
