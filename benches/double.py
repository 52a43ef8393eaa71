"""A double of E2B's cloud in a process of its own, over plain HTTP or TLS."""

import os
import subprocess
import sys
from pathlib import Path

import places
import trustme

DOUBLES = Path(__file__).resolve().parent.parent / "tests" / "doubles"
GREETING = "e2b double on "
KEY = "key-of-the-benchmarks"
# a proxy of the machine would stand between
DIRECT = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
# sandboxes outlive any run
SANDBOX_SECONDS = 3600


class Certificate:
    """A certificate for localhost, its key, and the authority that signed it: PEM files."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.authority, self.file, self.key = (
            folder / name for name in ("authority.pem", "certificate.pem", "key.pem")
        )
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        authority.cert_pem.write_to_path(self.authority)
        issued.private_key_pem.write_to_path(self.key)
        for part in issued.cert_chain_pems:
            part.write_to_path(self.file, append=True)


class Double:
    """The double's process; it ends, with all its sandboxes, when its standard input does."""

    def __init__(self, folder: Path, certificate: Certificate | None):
        folder.mkdir()
        self.folder, self.certificate = folder, certificate
        command = [double_python(), "-m", "e2b_cloud", "--api-key", KEY, "--python", kernel_python()]
        if certificate:
            command += ["--tls", certificate.file, certificate.key]
        environ = os.environ | {"PYTHONPATH": str(DOUBLES), "PYTHONDONTWRITEBYTECODE": "1"}
        pipe, errors = subprocess.PIPE, folder / "stderr"
        with errors.open("w") as stderr:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, env=environ, text=True)
        greeting = self.process.stdout.readline()
        if not greeting.startswith(GREETING):
            self.close()
            raise RuntimeError(f"the double of E2B did not start: {errors.read_text()[-2000:]}")
        self.url = greeting.removeprefix(GREETING).strip()

    def settings(self) -> dict[str, str]:
        """What a service must know to have its sandboxes there."""
        if self.certificate:
            return {"INTERPRETERD_CONFIG": str(self._entry()), "INTERPRETERD_DEFAULT_PROVIDER": "own", **DIRECT}
        return {
            "INTERPRETERD_E2B_API_KEY": KEY,
            "INTERPRETERD_E2B_API_URL": self.url,
            "INTERPRETERD_E2B_SANDBOX_URL": self.url,
            "INTERPRETERD_DEFAULT_PROVIDER": "e2b",
            **DIRECT,
        }

    def _entry(self) -> Path:
        """A file of settings with an entry of its own: certificates are named in no other way."""
        file, key = self.folder / "settings.toml", self.folder / "key"
        key.write_text(KEY)
        entry = {"kind": "e2b", "api_key_file": key, "api_url": self.url, "sandbox_url": self.url}
        entry["ca_file"] = self.certificate.authority
        file.write_text("\n".join(["[providers.own]", *(f'{name} = "{value}"' for name, value in entry.items()), ""]))
        return file

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def double_python() -> Path:
    """The Python that `make doubles` installs where it is there; else our own, which has the same."""
    installed = places.doubles() / "bin" / "python"
    return installed if installed.exists() else Path(sys.executable)


def kernel_python() -> Path:
    """The newest guest's Python where there is one, as in the sandboxes of this machine; else our own."""
    found = sorted(places.guests().glob("*/bin/python"), key=lambda python: python.parent.stat().st_mtime)
    return found[-1] if found else Path(sys.executable)
