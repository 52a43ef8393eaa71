"""The Python environment of the rivals, made once and kept."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
# which those name
REQUIREMENTS_OF_DOUBLES = HERE.parent / "tests" / "doubles" / "requirements.txt"
# the mark of an environment that was made to its end
WHOLE = ".whole"


def cache() -> Path:
    """The folder of what is kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "interpreterd-bench"


def go_on_inside(program: Path | None, python: Path | None) -> None:
    """Goes on as the environment's Python; returns where it already is that."""
    if Path(sys.prefix).parent == cache().resolve():
        return
    inside = (made_before() if program is None else None) or make(python or choose_python(program))
    script = str(Path(sys.argv[0]).resolve())
    os.execv(inside, [str(inside), script, *sys.argv[1:]])


def make(python: Path) -> Path:
    """Gives the environment's Python, made anew when the requirements or the Python have changed."""
    folder = cache().resolve() / f"{digest()}-{version_of(python)}"
    inside = folder / "bin" / "python"
    if (folder / WHOLE).exists():
        return inside
    print("preparing the rivals' environment: once, some minutes", flush=True)
    # a virtual environment cannot be moved: it is made in place, and half of one is made anew
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run([inside, "-m", "pip", "install", "--quiet", "-r", REQUIREMENTS], check=True)
    (folder / WHOLE).touch()
    return inside


def made_before() -> Path | None:
    """Any whole environment of these requirements: good enough for a report."""
    found = sorted(cache().resolve().glob(f"{digest()}-*/{WHOLE}"))
    return found[0].parent / "bin" / "python" if found else None


def digest() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes() + REQUIREMENTS_OF_DOUBLES.read_bytes()).hexdigest()[:12]


def choose_python(program: Path | None) -> Path:
    """The Python that the guest is built on where there is one: builds differ in speed."""
    own = Path(sys.executable)
    wanted = guest_version(program) if program else None
    if wanted is None:
        return own
    minor = "python" + wanted.rpartition(".")[0]
    places = [own, *(Path(place) / minor for place in ["/usr/bin", *os.environ.get("PATH", "").split(os.pathsep)])]
    for candidate in places:
        if candidate.exists() and version_of(candidate) == wanted:
            return candidate
    return own


def guest_version(program: Path) -> str | None:
    """The version of the guest Python, as `check` says it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        command = [program, "check", "--data-dir", f"{folder}/data"]
        said = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.search(r"Python (\d+\.\d+\.\d+)", said)
    return found[1] if found else None


def version_of(python: Path) -> str | None:
    command = [python, "-c", "import platform; print(platform.python_version())"]
    ran = subprocess.run(command, capture_output=True, text=True)
    return ran.stdout.strip() if ran.returncode == 0 else None
