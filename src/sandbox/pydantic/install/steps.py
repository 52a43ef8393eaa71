"""How a step of the installation runs, says what it does, and fails."""

import contextlib
import hashlib
import os
import signal
import subprocess
from pathlib import Path


class Failure(Exception):
    """A sentence for the user: what did not work and what can be done."""


def say(line: str) -> None:
    print(line, flush=True)


def run(
    step: str,
    command: list,
    *,
    seconds: float,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    hint: str = "",
) -> None:
    """Runs a program, whose own words go to the terminal; a failure is told by its step."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, cwd=cwd, process_group=0)
    except OSError as error:
        raise Failure(f"cannot run {command[0]}: {error.strerror}") from None
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise Failure(f"{step} did not end within {seconds:.0f} seconds{hint}") from None
    finally:
        end_group(process)
    if code < 0:
        raise Failure(f"{step} was ended by signal {-code}{hint}")
    if code:
        raise Failure(f"{step} failed, see above{hint}")


def end_group(process: subprocess.Popen) -> None:
    """Ends what a program started too, such as the pip that venv runs, lest it writes on."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_sha256(path: Path, wanted: str, whence: str) -> None:
    found = sha256(path)
    if found != wanted:
        raise Failure(f"{path.name} from {whence} is not the file that was pinned: sha256 {found} instead of {wanted}")
