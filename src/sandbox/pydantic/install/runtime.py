"""Installs the runtime: Deno from PyPI, Pyodide from the npm registry."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

from steps import Failure, require_sha256, run

HERE = Path(__file__).resolve().parent
DENO_LOCK = HERE / "deno.txt"
PYODIDE_LOCK = HERE / "pyodide.sha256"
DENO = re.search(r"^deno==(\S+)", DENO_LOCK.read_text(), re.M).group(1)
PYODIDE = "314.0.7"
# bounds against a network that hangs; a slow line may take minutes
DOWNLOAD_SECONDS = 1800
QUIET = ["--quiet", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]


class Pip:
    """The pip of a venv that is thrown away."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.python = folder / "bin/python"
        run("making a venv for pip", [sys.executable, "-I", "-m", "venv", folder], seconds=300)

    def run(self, step: str, arguments: list, *, hint: str = "") -> None:
        command = [self.python, "-I", "-m", "pip", arguments[0], *QUIET, *arguments[1:]]
        run(step, command, seconds=DOWNLOAD_SECONDS, hint=hint)

    def site_packages(self) -> Path:
        return self.folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def install_deno(pip: Pip, target: Path) -> Path:
    """Puts the one program of PyPI's wheel at TARGET/bin/deno."""
    hint = (
        f"\nDeno {DENO} needs Linux with glibc 2.27 or newer on x86_64 or aarch64, and a package index that pip reaches"
    )
    pinned = ["install", "--require-hashes", "--only-binary=:all:", "--no-deps", "-r", DENO_LOCK]
    pip.run("installing Deno", pinned, hint=hint)
    deno = target / "bin/deno"
    deno.parent.mkdir(exist_ok=True)
    os.replace(pip.folder / "bin/deno", deno)
    deno.chmod(0o755)
    for license in pip.site_packages().glob("deno-*.dist-info/licenses/*"):
        shutil.copyfile(license, deno.parent / f"deno.{license.name}")
    start_deno(deno, pip.folder)
    return deno


def start_deno(deno: Path, cache: Path) -> None:
    """Tells a Deno that does not run here before much else is done."""
    run("starting Deno", [deno, "eval", "--quiet", "0"], seconds=60, env=deno_environment(cache))


def deno_environment(cache: Path) -> dict[str, str]:
    """What Deno gets to see when it runs our server: nothing of the caller's."""
    return {"DENO_DIR": str(cache), "NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1"}


def install_pyodide(deno: Path, work: Path, target: Path) -> Path:
    """Lets Deno fetch the npm package, which knows .npmrc and proxies, and keeps what is needed at run time."""
    project = work / "npm"
    project.mkdir()
    (project / "package.json").write_text(json.dumps({"dependencies": {"pyodide": PYODIDE}}))
    env = {**os.environ, **deno_environment(work / "deno"), "DENO_TLS_CA_STORE": "mozilla,system"}
    authority = os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE")
    if authority:
        env["DENO_CERT"] = authority
    fetch = [deno, "install", "--quiet", "--no-lock", "--node-modules-dir=auto"]
    hint = f"\nPyodide {PYODIDE} comes from the npm registry: NPM_CONFIG_REGISTRY or ~/.npmrc name another one"
    run("fetching Pyodide", fetch, seconds=DOWNLOAD_SECONDS, env=env, cwd=project, hint=hint)
    return copy_pyodide(project / "node_modules/pyodide", target / "pyodide")


def copy_pyodide(package: Path, folder: Path) -> Path:
    """Copies, as Deno's files are hard links into its cache, and checks each file."""
    folder.mkdir(exist_ok=True)
    for line in PYODIDE_LOCK.read_text().splitlines():
        wanted, name = line.split()
        try:
            shutil.copyfile(package / name, folder / name)
        except FileNotFoundError:
            raise Failure(f"the npm package pyodide {PYODIDE} has no {name}") from None
        require_sha256(folder / name, wanted, "the npm registry")
    return folder
