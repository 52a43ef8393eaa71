"""The user, the directories and the processes of guests."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside", "worker.py")
NOBODY = 65534
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCANS_AT_MOST = 5


class Guest:
    """Who runs the code of sessions, and below which directory; the end of the `with` removes that."""

    def __init__(self, python):
        self.identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self.directory = os.path.realpath(tempfile.mkdtemp(prefix="agentcore-"))
        os.chmod(self.directory, 0o711)
        # the repository may be where nobody can read
        self.worker = shutil.copyfile(WORKER, f"{self.directory}/worker.py")
        os.chmod(self.worker, 0o644)
        try:
            self.python = self.usable_python(python)
        except BaseException:
            self.remove()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)

    def usable_python(self, python):
        """The given one; of the two that this process has, the first that the guest can run."""
        choice = [shutil.which(python) or python] if python else [sys.executable, sys._base_executable]
        for candidate in map(os.path.abspath, choice):
            if not self.identity or self.can_run(candidate):
                return candidate
        sys.exit(f"agentcore: nobody (user {NOBODY}) cannot run {choice[-1]}; give another with --python")

    def can_run(self, python):
        command = [python, "-I", "-S", "-c", ""]
        with contextlib.suppress(OSError):
            null = subprocess.DEVNULL
            return subprocess.run(command, cwd="/", env={}, stdin=null, stderr=null, **self.identity).returncode == 0
        return False

    def make_home(self, name):
        """A private directory and the working directory in it."""
        home = f"{self.directory}/{name}"
        for path in (home, f"{home}/var"):
            os.mkdir(path, 0o700)
            self.own(path)
        return home

    def own(self, path):
        """Gives a path, or a descriptor, to the guest."""
        if self.identity:
            os.chown(path, NOBODY, NOBODY)

    async def spawn(self, command, home, **streams):
        """Starts a program as the leader of a session of processes in the working directory."""
        path = f"{os.path.dirname(self.python)}:{SYSTEM_PATH}"
        # the Python is the host's and cannot be written to: pip installs beside it
        site = {"PIP_TARGET": f"{home}/site", "PYTHONPATH": f"{home}/site"}
        variables = {"PATH": path, "LANG": "C.UTF-8", "HOME": home, **site}
        place = {"cwd": f"{home}/var", "env": variables, "start_new_session": True}
        return await asyncio.create_subprocess_exec(*command, **place, **self.identity, **streams)


def kill_group(leader):
    """SIGKILLs what is left of the process session that a program led."""
    kill_until_gone(lambda process: session_of(process) == leader)


def kill_inhabitants(home):
    """SIGKILLs all that was ever started for a home, daemons too: its name is in their environments."""
    mark = f"HOME={home}".encode()
    kill_until_gone(lambda process: mark in variables_of(process))


def kill_until_gone(wanted):
    for _ in range(SCANS_AT_MOST):
        found = [int(name) for name in os.listdir("/proc") if name.isdigit() and wanted(name)]
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not found:
            return


def session_of(process):
    """The session of a living process; zombies have none that matters."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:
        state, _, _, session = file.read().rpartition(b")")[2].split()[:4]
        return None if state in b"ZX" else int(session)
    return None


def variables_of(process):
    with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
        return file.read().split(b"\0")
    return []
