#!/usr/bin/env python3
"""Asks the service easy questions that a small real model answers, and checks what must hold of any answer.

Standard library only, but for the model's server, which runs on the same Python.
"""

import argparse
import base64
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
RUN_SECONDS = 300
START_SECONDS = 120
# what a model that is not wise may run into
EXPECTED_FAILURES = {"max_turns", "model_empty", "budget"}
SALES = "region,revenue\nnorth,120\nsouth,80\nnorth,60\neast,40\n"
QUESTIONS = [
    {"message": "Compute 37*91 with Python.", "expected": "3367"},
    {
        "message": "Print the sum of the column revenue of sales.csv. Use pandas.",
        "files": [{"name": "sales.csv", "content_base64": base64.b64encode(SALES.encode()).decode()}],
    },
    {"message": "Run this Python code and say what happens: int('seven')"},
    {"message": "Use Python to print the first ten square numbers.", "events": True},
]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--program", required=True, help="the interpreterd program to start")
    arguments.add_argument("--model", required=True, help="the model, a GGUF file")
    options = arguments.parse_args()
    # ends what was started, as every other way out does
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began = time.monotonic()
    # other users must be able to enter: the service becomes one when it is started as root
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as started:
        os.chmod(folder, 0o755)
        log = started.enter_context(pathlib.Path(folder, "model.log").open("w+"))
        command = [sys.executable, HERE / "serve.py", options.model]
        model, base_url = started.enter_context(running("the model", command, {}, log))
        print(f"test-model: the model is ready after {time.monotonic() - began:.1f} s")
        settings = {
            "INTERPRETERD_LISTEN": "127.0.0.1:0",
            "INTERPRETERD_DATA_DIR": f"{folder}/data",
            "INTERPRETERD_MODEL": "small",
            "INTERPRETERD_MODEL_BASE_URL": base_url,
            "INTERPRETERD_MODEL_MAX_TOKENS": "200",
            "INTERPRETERD_MODEL_SECONDS": str(RUN_SECONDS),
            "INTERPRETERD_LOG": "warn",
        }
        _, url = started.enter_context(running("the service", [options.program, "serve"], settings, None))
        faults = [f"question {number}: {fault}" for number, fault in asked(url)]
        print(f"test-model: the model took {peak_mb(model.pid)} MB, all of it {time.monotonic() - began:.0f} s")
        if faults:
            log.seek(0)
            print("--- the last words of the model's server", *log.read().splitlines()[-20:], sep="\n")
    print(*(f"test-model: {fault}" for fault in faults or ["passed"]), sep="\n")
    sys.exit(1 if faults else 0)


@contextlib.contextmanager
def running(name, command, settings, log):
    """A process that says where it answers with the last word of its first line, until it is not needed any more."""
    environment = {**os.environ, **settings}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    late = threading.Timer(START_SECONDS, process.kill)
    late.start()
    try:
        line = process.stdout.readline()
        late.cancel()
        if not line:
            if log:
                log.seek(0)
                print(log.read(), file=sys.stderr)
            sys.exit(f"test-model: {name} did not start, see above")
        yield process, line.split()[-1]
    finally:
        late.cancel()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def asked(url):
    """Asks all questions; gives what does not hold, with the question's number."""
    for number, question in enumerate(QUESTIONS, 1):
        print(f"\n=== question {number}: {question['message']}", flush=True)
        began = time.monotonic()
        try:
            run, faults = ask(url, question)
        except (OSError, ValueError) as error:
            yield number, f"no answer: {error!r}"
            continue
        for fault in faults:
            yield number, fault
        if run is None:
            continue
        show(run, time.monotonic() - began)
        with urllib.request.urlopen(f"{url}/v1/runs/{run['id']}", timeout=30) as answer:
            again = json.loads(answer.read())
        for field in run.keys() | again.keys():
            if run.get(field) != again.get(field):
                yield number, f"read again, {field} is {again.get(field)!r}, and was {run.get(field)!r}"
        for fault in wrong_with(run, question.get("expected")):
            yield number, fault


def ask(url, question):
    """POST /v1/interpret. Gives the run and what is wrong with the way it came."""
    events = question.get("events", False)
    body = {"message": question["message"], "files": question.get("files", []), "timeout_seconds": RUN_SECONDS}
    headers = {"content-type": "application/json", "accept": "text/event-stream" if events else "application/json"}
    call = urllib.request.Request(f"{url}/v1/interpret", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(call, timeout=RUN_SECONDS + 30) as answer:
            return from_events(answer) if events else (json.loads(answer.read()), [])
    except urllib.error.HTTPError as error:
        return None, [f"HTTP {error.code}: {error.read().decode()}"]


def from_events(answer):
    """The run in the last of the server-sent events."""
    names, fields, faults = [], {}, []
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "event" in fields:
            names.append(fields["event"])
            data, fields = fields["data"], {}
    if names[:1] != ["run.started"]:
        faults.append(f"the first event is not run.started: {names[:1]}")
    if names[-1:] != ["run.completed"]:
        return None, [*faults, f"the last event is not run.completed: {names[-1:]}"]
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    print("events: " + ", ".join(f"{name} x{count}" if count > 1 else name for name, count in counts.items()))
    print(f"model.delta events: {counts.get('model.delta', 'none')}")
    run = json.loads(data)
    if "id" not in run:
        return None, [*faults, f"run.completed holds no run: {data}"]
    return run, faults


def wrong_with(run, expected):
    """What does not hold of a run, however wise the model is."""
    failure = (run.get("failure") or {}).get("kind")
    results = run["code_exec_results"]
    if run["status"] not in ("success", "error", "timeout"):
        yield f"the status is {run['status']}"
    if run["status"] == "error" and failure not in EXPECTED_FAILURES:
        yield f"it failed by {failure}: {run.get('error')}"
    if run["status"] == "success" and not run["text"].strip():
        yield "the answer is empty"
    if run["turns"] < 1:
        yield "the model was not asked"
    if run["turns"] and not run["usage"]["output_tokens"]:
        yield "no tokens were counted"
    for result in results:
        if result["execution"]["status"] not in ("success", "error", "timeout", "unknown"):
            yield f"an execution's status is {result['execution']['status']}"
    if expected is None:
        return
    if not results:
        yield "no cell was executed"
    if not any(expected in text for text in [run["text"], *(result["execution"]["text"] for result in results)]):
        yield f"{expected} is neither in an execution's text nor in the answer"


def show(run, seconds):
    for number, result in enumerate(run["code_exec_results"], 1):
        execution = result["execution"]
        print(f"--- cell {number}: {execution['status']}")
        print(indent(result["code"], ">>> "))
        print(indent(execution["text"], "    "))
    print("--- answer")
    print(run["text"])
    usage, failure = run["usage"], run.get("failure")
    ended = f"{run['status']} ({failure['kind']}: {failure['message']})" if failure else run["status"]
    tokens = f"{usage['input_tokens']} tokens in, {usage['output_tokens']} out"
    print(f"--- {ended} after {run['turns']} turns, {tokens}, {seconds:.1f} s", flush=True)


def indent(text, prefix):
    return "\n".join(prefix + line for line in text.rstrip("\n").split("\n"))


def peak_mb(pid):
    """The most memory that a process has had, as the kernel counts it."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


main()
