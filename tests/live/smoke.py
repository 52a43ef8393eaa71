#!/usr/bin/env python3
"""A smoke test of a provider against its real cloud: one sandbox, a dozen cheap calls, under a minute.

Standard library only. The service is started here; it takes the cloud's own variables from the environment.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PASSED = {
    "e2b": ("E2B_API_KEY", "E2B_DOMAIN", "E2B_API_URL", "E2B_SANDBOX_URL", "INTERPRETERD_E2B_TEMPLATE"),
    "bedrock": (
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN",
        "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE",
        "INTERPRETERD_BEDROCK_INTERPRETER",
    ),
}
ASKED_FOR = {
    "e2b": ("E2B_API_KEY", "a key of E2B"),
    "bedrock": ("AWS_REGION", "a region, and give credentials in one of AWS's usual ways"),
}
SETTINGS = {
    "e2b": {"INTERPRETERD_E2B_TTL_SECONDS": "120"},
    "bedrock": {"INTERPRETERD_BEDROCK_SESSION_SECONDS": "120", "INTERPRETERD_LIFETIME_SECONDS": "90"},
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--program", required=True, help="the interpreterd program to start")
    arguments.add_argument("--provider", required=True, choices=sorted(PASSED))
    given = arguments.parse_args()
    variable, what = ASKED_FOR[given.provider]
    if not os.environ.get(variable):
        print(f"not tried: set {variable} to {what} (a run costs less than a cent)")
        return
    # other users must be able to enter: the service becomes one when it is started as root
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        settings = {
            "INTERPRETERD_LISTEN": "127.0.0.1:0",
            "INTERPRETERD_DATA_DIR": f"{folder}/data",
            "INTERPRETERD_DEFAULT_PROVIDER": given.provider,
            "INTERPRETERD_LOG": "warn",
            **SETTINGS[given.provider],
        }
        passed = ("PATH", "HOME", *PASSED[given.provider])
        kept = {name: os.environ[name] for name in passed if name in os.environ}
        service = subprocess.Popen(
            [given.program, "serve"], stdout=subprocess.PIPE, text=True, env={**kept, **settings}
        )
        try:
            line = service.stdout.readline()
            if not line:
                sys.exit("the service did not start, see above")
            Smoke(line.split()[-1], given.provider).run()
        finally:
            service.terminate()
            service.wait(30)


class Smoke:
    """The calls, each told with what it took."""

    def __init__(self, url, provider):
        self.url, self.provider, self.failed = url, provider, 0

    def run(self):
        session = self.call("create a session", "POST", "/v1/sessions", {"env": {"OWN": "it's mine"}})
        path = f"/v1/sessions/{session['id']}"
        try:
            self.use(path)
        finally:
            self.call("end the session", "DELETE", path)
        if self.failed:
            sys.exit(f"{self.failed} checks failed")
        print(f"the provider {self.provider} works with this cloud")

    def use(self, path):
        def cell(what, code, **more):
            return self.call(what, "POST", f"{path}/exec", {"code": code, **more})

        first = cell("a first cell", "x = 6 * 7\nprint('printed')\nx")
        self.check(first["stdout"] == "printed\n" and first["outputs"][-1]["data"]["text/plain"] == "42", first)
        kept = cell("variables and environment", "import os\nx, os.environ['OWN'], os.getcwd()")
        self.check("42" in kept["text"] and "mine" in kept["text"] and "/files" in kept["text"], kept)
        error = cell("an error", "1 / 0")
        self.check(error["error_detail"]["name"] == "ZeroDivisionError" and error["error_detail"]["line"] == 1, error)
        late = cell("a cell out of time", "import time\ntime.sleep(60)", timeout_seconds=2)
        self.check(late["status"] == "timeout", late)
        after = cell("the cell after it", "x")
        self.check(after["text"] == "42" or late["state_lost"] or after["state_lost"], after)
        self.put(f"{path}/files/sub/a%20b.csv", b"a,b\n1,2\n")
        made = cell("a chart and a file", CHART)
        self.check(any(file["path"] == "sum.txt" for file in made["files"]), made)
        self.check(any("image/png" in output["data"] for output in made["outputs"]), made["status"])
        self.check(self.get(f"{path}/files/sum.txt") == b"3", "the file is another one")
        shell = self.call("a command line", "POST", f"{path}/shell", {"command": "cat; exit 3", "stdin": "in"})
        self.check(shell["stdout"] == "in" and shell["exit_code"] == 3, shell)
        dead = cell("a kernel that dies", "import os\nos._exit(1)")
        self.check(dead["state_lost"] and dead["failure"]["kind"] == "killed", dead)
        again = cell("the kernel after it", "import os\n'x' in globals(), os.getcwd()")
        self.check("False" in again["text"] and "/files" in again["text"], again)

    def call(self, what, method, path, body=None):
        began = time.monotonic()
        content = None if body is None else json.dumps(body).encode()
        answer = self.send(method, path, content, {"content-type": "application/json"})
        print(f"{what}: {(time.monotonic() - began) * 1000:.0f} ms")
        return json.loads(answer) if answer else None

    def put(self, path, content):
        self.send("PUT", path, content, {"content-type": "application/octet-stream"})

    def get(self, path):
        return self.send("GET", path, None, {})

    def send(self, method, path, content, headers):
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            sys.exit(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}")

    def check(self, good, seen):
        if not good:
            self.failed += 1
            print(f"WRONG: {json.dumps(seen)[:2000]}")


CHART = """
import csv, matplotlib.pyplot as plt
rows = list(csv.reader(open('sub/a b.csv')))
open('sum.txt', 'w').write(str(sum(map(int, rows[1]))))
plt.plot([1, 2])
plt.show()
"""

if __name__ == "__main__":
    main()
