#!/usr/bin/env python3
"""Calls a service in ways that show whether a restart loses anything. Standard library only."""

import argparse
import collections
import hashlib
import http.client
import json
import pathlib
import sys
import threading
import time
import urllib.parse
import uuid

ENDED = {"success", "error", "timeout", "unknown", "cancelled"}
WORKERS = {"exec": 4, "execute": 2, "later": 2}
# longer than the service's grace: they cannot come to their end
LONG = "import time; time.sleep(300)"
SILENCE_SECONDS = 60


class Broken(Exception):
    """Nobody knows whether the service has the request."""


def call(base, method, path, body=None, **headers):
    """Status and body; `Broken` where the connection ended before an answer."""
    address = urllib.parse.urlsplit(base)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=SILENCE_SECONDS)
    data = None if body is None else json.dumps(body).encode()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, data, {"content-type": "application/json", **fields})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Broken(error) from error
    finally:
        connection.close()


def must(base, method, path, body=None, **headers):
    status, answer = call(base, method, path, body, **headers)
    if status >= 300:
        sys.exit(f"{method} {path}: {status} {answer[:500]!r}")
    return answer


def keep(base, file):
    """A run with files, small and larger than what a row holds, noted down."""
    code = (
        "import numpy as np, pandas as pd\n"
        "pd.DataFrame({'n': range(1000)}).to_csv('table.csv')\n"
        "open('noise.bin', 'wb').write(np.random.default_rng(7).bytes(3_000_000))\n"
        "print('kept')"
    )
    run = json.loads(must(base, "POST", "/v1/execute", {"code": code}))
    files = {each["url"]: each["sha256"] for each in run["output_files"]}
    noted = {"id": run["run_id"], "text": run["text"], "files": files}
    file.write_text(json.dumps(noted))
    print(f"run {noted['id']} with {len(files)} files")


def kept(base, file):
    """The same run is there, with the same files, byte by byte."""
    noted = json.loads(file.read_text())
    run = json.loads(must(base, "GET", f"/v1/runs/{noted['id']}"))
    found = {each["url"]: each["sha256"] for each in run["output_files"]}
    assert (run["status"], run["text"], found) == ("success", noted["text"], noted["files"]), run
    for url, sha256 in noted["files"].items():
        content = must(base, "GET", url)
        assert hashlib.sha256(content).hexdigest() == sha256, url
    print(f"run {noted['id']} is there with {len(found)} files, byte by byte")


class Load:
    """Callers that send until the service is gone, and note what became of each request."""

    def __init__(self, base):
        self.base, self.requests, self.lock, self.over = base, [], threading.Lock(), threading.Event()

    def note(self, **request):
        with self.lock:
            self.requests.append(request)

    def send(self, path, code, kind, **headers):
        """Sends one request with a key; false once the service is gone."""
        marker = uuid.uuid4().hex
        body = {"code": f"{code}  # {marker}"}
        request = {"path": path, "body": body, "marker": marker, "kind": kind}
        try:
            status, answer = call(self.base, "POST", path, body, idempotency_key=marker, **headers)
        except Broken as error:
            # never connected: the service cannot know of it
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            self.note(**request, became="refused" if refused else "broken")
            return False
        answer = json.loads(answer)
        if status >= 300:
            self.note(**request, became="refused", status=status, answer=answer)
            return answer.get("code") not in {"shutting_down", "store_unavailable"} and status != 503
        self.note(**request, became="accepted", status=status, answer=answer)
        return True

    def execs(self):
        """A session whose cells count: one that ran twice would leave a gap."""
        session = json.loads(must(self.base, "POST", "/v1/sessions", {}))["id"]
        path, expected = f"/v1/sessions/{session}/exec", 0
        must(self.base, "POST", path, {"code": "n = 0"})
        while not self.over.is_set() and self.send(path, "n += 1; import time; time.sleep(0.05); n", "exec"):
            expected += 1
            last = self.requests_of(path)[-1]
            if last["became"] == "accepted" and last["answer"]["status"] == "success":
                assert last["answer"]["text"] == str(expected), last
            else:
                return

    def requests_of(self, path):
        with self.lock:
            return [request for request in self.requests if request["path"] == path]

    def executes(self):
        while not self.over.is_set() and self.send("/v1/execute", "import uuid; print(uuid.uuid4())", "execute"):
            pass

    def later(self):
        long = self.send("/v1/execute", LONG, "later", prefer="respond-async")
        while long and not self.over.is_set():
            code = "import time, uuid; time.sleep(1); print(uuid.uuid4())"
            if not self.send("/v1/execute", code, "later", prefer="respond-async"):
                return
            time.sleep(0.2)

    def run(self, seconds):
        work = {"exec": self.execs, "execute": self.executes, "later": self.later}
        threads = [threading.Thread(target=work[kind]) for kind, count in WORKERS.items() for _ in range(count)]
        for thread in threads:
            thread.start()
        ends_at = time.monotonic() + seconds
        for thread in threads:
            thread.join(timeout=max(0.0, ends_at - time.monotonic()))
        self.over.set()
        for thread in threads:
            thread.join(timeout=2 * SILENCE_SECONDS)


def load(base, file, seconds):
    sent = Load(base)
    sent.run(seconds)
    file.write_text(json.dumps(sent.requests))
    accepted = collections.Counter(request["kind"] for request in sent.requests if request["became"] == "accepted")
    assert all(accepted[kind] >= 3 for kind in WORKERS), f"too few were accepted to show anything: {accepted}"
    assert any(request["became"] != "accepted" for request in sent.requests), "the service was never gone"
    print(summary(sent.requests))


def summary(requests):
    became = collections.Counter(request["became"] for request in requests)
    return f"{len(requests)} requests: " + ", ".join(f"{count} {what}" for what, count in sorted(became.items()))


def all_runs(base):
    """Every run that the service remembers, whole, by the marker in its code."""
    found, path = collections.defaultdict(list), "/v1/runs?limit=100"
    while path:
        page = json.loads(must(base, "GET", path))
        for run in page["data"]:
            assert run["status"] in ENDED, f"after the start run {run['id']} is {run['status']}"
            whole = json.loads(must(base, "GET", f"/v1/runs/{run['id']}"))
            code = "".join(result["code"] for result in whole["code_exec_results"])
            found[code.rpartition("# ")[2]].append(whole)
        path = f"/v1/runs?limit=100&after={page['next_cursor']}" if page["has_more"] else None
    return found


def verify(base, file):
    """Every accepted request has one run with an end; one without an answer is sent again, and still has one run."""
    requests = json.loads(file.read_text())
    by_marker = all_runs(base)
    by_id = {run["id"]: run for runs in by_marker.values() for run in runs}
    ends = collections.Counter()
    for request in requests:
        if request["became"] != "accepted":
            continue
        answer = request["answer"]
        run = by_id.get(answer.get("run_id") or answer["id"])
        assert run, f"lost: {request}"
        if request["kind"] != "later":
            assert (run["status"], run["text"]) == (answer["status"], answer["text"]), (run, answer)
        ends[run["status"]] += 1
    again = answered_again(base, [request for request in requests if request["became"] == "broken"])
    doubled = [marker for marker, runs in all_runs(base).items() if len(runs) > 1 and len(marker) == 32]
    assert not doubled, f"run twice: {doubled}"
    told = ", ".join(f"{count} {status}" for status, count in sorted(ends.items()))
    print(f"each accepted request has its one run ({told}); {again}; none ran twice, none is left running")


def answered_again(base, broken):
    """Those that the service may have or not: a proxy hangs up on who comes while it stops."""
    became = collections.Counter()
    for request in broken:
        status, answer = call(base, "POST", request["path"], request["body"], idempotency_key=request["marker"])
        answer = json.loads(answer)
        became[answer["status"] if status < 300 else answer["code"]] += 1
    told = ", ".join(f"{count} {status}" for status, count in sorted(became.items()))
    return f"{len(broken)} that got no answer were sent again with their keys ({told or 'none'})"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["keep", "kept", "load", "verify"])
    parser.add_argument("file", type=pathlib.Path, help="what is noted, or was")
    parser.add_argument("--base", required=True)
    parser.add_argument("--seconds", type=float, default=60, help="the longest that load sends")
    options = parser.parse_args()
    if options.what == "load":
        load(options.base, options.file, options.seconds)
    else:
        {"keep": keep, "kept": kept, "verify": verify}[options.what](options.base, options.file)


if __name__ == "__main__":
    main()
