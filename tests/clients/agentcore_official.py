"""boto3 against the double of AWS AgentCore's Code Interpreter: what it accepts is what the service says.

usage: agentcore_official.py [--python PATH], PATH being the Python of the kernels. The double is started here, once
for each way of starting it.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

import boto3
from botocore.eventstream import ChecksumMismatch
from botocore.exceptions import ClientError, EventStreamError

DOUBLES = pathlib.Path(__file__).resolve().parent.parent / "doubles"
SYSTEM, CUSTOM = "aws.codeinterpreter.v1", "mine-0123456789"
EXECUTE = "tools/invoke executeCode$"
SECONDS_AT_MOST = 20  # of polling
BINARY = bytes(range(256)) * 100
TRACEBACK = """Traceback (most recent call last):
  File "<cell>", line 2, in <module>
ZeroDivisionError: division by zero
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    python = parser.parse_args().python
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    with double("--python", python, "--interpreter", SYSTEM, "--interpreter", CUSTOM) as service:
        lifecycle(service)
        listing(service)
        expiry(service)
        validation(service)
        with service.session() as session:
            code(session)
            commands(session)
            tasks(session)
            files(session)
            paths(session)
            odd_streams(session)
            broken_streams(session)
            retries(session)
            deaths(session)
    kinds = [("thread", "")]
    if subprocess.run([python, "-c", "import IPython"], stderr=subprocess.DEVNULL).returncode == 0:
        kinds.append(("ipython", "42\n"))
    for kind, output in kinds:
        with double("--python", python, "--kernel", kind) as service, service.session() as session:
            kernels(session, kind, output)
    with double("--python", python, "--max-sessions", "1", "--region", "eu-west-1", region="eu-west-1") as service:
        refusals(service)
    with double("--python", python, "--no-pty", "--stdout-limit", "5", "--read-files", "text") as service:
        other_ways(service)
    print(f"boto3 accepts the double ({boto3.__version__})")


@contextlib.contextmanager
def double(*options, region="us-east-1"):
    """Starts the double; it ends with its standard input."""
    command = [sys.executable, "-m", "agentcore", *options]
    environment = {**os.environ, "PYTHONPATH": str(DOUBLES)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        base = process.stdout.readline().removeprefix("agentcore double on ").strip()
        service = Service(base, region)
        try:
            yield service
        finally:
            process.stdin.close()
            assert process.wait(20) == 0, process.returncode
        assert not [folder for folder in service.folders if os.path.exists(folder)], service.folders


class Service:
    """boto3's client of a double, and the double's back door."""

    def __init__(self, base, region):
        self.base, self.region = base, region
        self.client = self.client_with("SECRETTEST", region)
        self.folders = []

    def client_with(self, secret, region):
        keys = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": secret}
        return boto3.client("bedrock-agentcore", region_name=region, endpoint_url=self.base, **keys)

    def start(self, identifier=SYSTEM, **arguments):
        return self.client.start_code_interpreter_session(codeInterpreterIdentifier=identifier, **arguments)

    def get(self, session_id):
        return self.client.get_code_interpreter_session(codeInterpreterIdentifier=SYSTEM, sessionId=session_id)

    def stop(self, session_id):
        return self.client.stop_code_interpreter_session(codeInterpreterIdentifier=SYSTEM, sessionId=session_id)

    def list(self, **arguments):
        arguments = {"codeInterpreterIdentifier": SYSTEM, **arguments}
        return self.client.list_code_interpreter_sessions(**arguments)

    @contextlib.contextmanager
    def session(self):
        session = Session(self, self.start()["sessionId"])
        try:
            yield session
        finally:
            self.folders = [entry["folder"] for entry in self.back_door("sessions")]
            self.stop(session.id)

    def back_door(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.base}/_double/{path}", data) as response:
            return json.load(response)


class Session:
    """The tools of one session."""

    def __init__(self, service, session_id):
        self.service, self.id = service, session_id

    def events(self, tool, **arguments):
        """The results in the stream, as they are."""
        target = {"codeInterpreterIdentifier": SYSTEM, "sessionId": self.id}
        answer = self.service.client.invoke_code_interpreter(**target, name=tool, arguments=arguments)
        assert answer["sessionId"] == self.id, answer
        return [event["result"] for event in answer["stream"]]

    def call(self, tool, **arguments):
        """The one result, without the time that it took."""
        (result,) = self.events(tool, **arguments)
        if "structuredContent" in result and result["structuredContent"].get("taskStatus") != "submitted":
            assert result["structuredContent"].pop("executionTime") >= 0, result
        return result

    def execute(self, code, **arguments):
        return self.call("executeCode", code=code, language="python", **arguments)

    def fault(self, match=EXECUTE, **order):
        self.service.back_door("faults", {"match": match, "session": self.id, **order})


def lifecycle(service):
    token = "a-token-of-33-characters-or-more-"
    options = {"name": "one", "sessionTimeoutSeconds": 60, "clientToken": token}
    started = service.start(**options)
    session_id = started["sessionId"]
    assert re.fullmatch("[0-9A-HJKMNP-TV-Z]{26}", session_id) and started["codeInterpreterIdentifier"] == SYSTEM
    assert service.start(**options)["sessionId"] == session_id
    error = refused("ValidationException", 400, lambda: service.start(**{**options, "name": "two"}))
    assert error.response["reason"] == "IdempotentParameterMismatchException", error.response
    found = without_metadata(service.get(session_id))
    expected = {"codeInterpreterIdentifier": SYSTEM, "sessionId": session_id, "name": "one", "status": "READY"}
    assert found == {**expected, "createdAt": started["createdAt"], "sessionTimeoutSeconds": 60}, found
    stopped = service.stop(session_id)
    assert stopped["sessionId"] == session_id and stopped["lastUpdatedAt"] > started["createdAt"], stopped
    assert service.get(session_id)["status"] == "TERMINATED"
    gone(service, session_id)
    unknown = "0" * 26
    refused("ResourceNotFoundException", 404, lambda: service.get(unknown))
    gone(service, unknown)
    refused("ResourceNotFoundException", 404, lambda: service.start(identifier="other-0123456789"))
    print("lifecycle: start, get, stop")


def gone(service, session_id):
    refused("ResourceNotFoundException", 404, lambda: service.stop(session_id))
    refused("ResourceNotFoundException", 404, lambda: Session(service, session_id).execute("1"))


def listing(service):
    ids = [service.start(CUSTOM, name=f"n{number}")["sessionId"] for number in range(12)]
    first = service.list(codeInterpreterIdentifier=CUSTOM)
    second = service.list(codeInterpreterIdentifier=CUSTOM, nextToken=first["nextToken"])
    assert [item["sessionId"] for item in first["items"] + second["items"]] == ids
    assert (len(first["items"]), "nextToken" in second) == (10, False)
    service.back_door("kill_session", {"id": ids[3]})
    ready = service.list(codeInterpreterIdentifier=CUSTOM, status="READY", maxResults=100)
    assert [item["sessionId"] for item in ready["items"]] == ids[:3] + ids[4:]
    (ended,) = service.list(codeInterpreterIdentifier=CUSTOM, status="TERMINATED")["items"]
    assert (ended["name"], ended["status"]) == ("n3", "TERMINATED"), ended
    refused("ValidationException", 400, lambda: service.list(nextToken="!"))
    print("listing: pages, states")


def expiry(service):
    session = Session(service, service.start(sessionTimeoutSeconds=1)["sessionId"])
    assert session.execute("print(1)")["isError"] is False
    until(lambda: service.get(session.id)["status"] == "TERMINATED")
    gone(service, session.id)
    print("expiry: the time of a session is absolute")


def validation(service):
    unchecked = boto3.session.Config(parameter_validation=False)
    keys = {"aws_access_key_id": "A", "aws_secret_access_key": "SECRETTEST", "endpoint_url": service.base}
    client = boto3.client("bedrock-agentcore", region_name=service.region, config=unchecked, **keys)
    wrong = {"name": ("", "x" * 101), "sessionTimeoutSeconds": (0, 28801, "60"), "clientToken": ("short",)}
    for field, values in wrong.items():
        for value in values:
            arguments = {"codeInterpreterIdentifier": SYSTEM, field: value}
            error = refused("ValidationException", 400, lambda: client.start_code_interpreter_session(**arguments))  # noqa: B023
            assert error.response["fieldList"][0]["name"] == field, error.response
    with service.session() as session:
        refused("ValidationException", 400, lambda: session.call("noSuchTool"))
    print("validation: names, times, tokens, tools")


def code(session):
    session.execute("kept = 41")
    assert session.execute("print(kept + 1, 'é 😀')") == succeeded("42 é 😀\n")
    assert session.execute("import sys; print('no', file=sys.stderr)") == succeeded("", "no\n")
    assert session.execute("print('before')\n1/0") == failed("before\n", TRACEBACK, 1)
    assert session.execute("import sys; sys.exit(3)") == failed("", "", 3)
    assert session.execute(
        "import os; os.write(1, b'unseen')\nprint(os.getcwd() == os.path.realpath('.'))"
    ) == succeeded("True\n")
    assert session.execute("print('kept' in globals())", clearContext=True) == succeeded("False\n")
    if os.geteuid() == 0:
        assert session.execute("import os; print(os.getuid(), os.access('/', os.W_OK))") == succeeded("65534 False\n")
    refusal = session.call("executeCode", code="1", language="javascript")
    assert refusal == refusal_of("Unsupported language: javascript"), refusal
    print("executeCode: output, tracebacks, exit codes, clearContext")


def commands(session):
    merged = "out\r\nproblem\r\n"
    found = session.call("executeCommand", command="echo out; echo problem >&2; exit 7")
    assert found == failed(merged, "", 1, shown=merged), found
    assert session.call("executeCommand", command="test -t 0 -a -t 1 -a -t 2 && echo a terminal") == succeeded(
        "a terminal\r\n"
    )
    lines = session.call("executeCommand", command="seq 200000")["structuredContent"]["stdout"]
    assert lines == "".join(f"{number}\r\n" for number in range(1, 200_001)), len(lines)
    left = session.call("executeCommand", command="sleep 600 & echo $!")["structuredContent"]["stdout"]
    until(lambda: has_ended(int(left)))
    print("executeCommand: on a terminal, without leaving children")


def has_ended(process):
    """Perhaps nobody has asked for its exit code yet."""
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes() == b""
    except OSError:
        return True


def tasks(session):
    started = session.call("startCommandExecution", command="echo a; echo b >&2; exit 3")["structuredContent"]
    task = started["taskId"]
    assert started == {"taskId": task, "taskStatus": "submitted"}, started
    state = until(lambda: ended_task(session, task))
    expected = {"taskId": task, "taskStatus": "failed", "stdout": "a\nb\n", "stderr": "", "exitCode": 3}
    assert state == expected, state
    task = session.call("startCommandExecution", command="echo on; sleep 600")["structuredContent"]["taskId"]
    until(lambda: session.call("getTask", taskId=task)["structuredContent"]["stdout"] == "on\n")
    state = session.call("getTask", taskId=task)["structuredContent"]
    assert state == {"taskId": task, "taskStatus": "working", "stdout": "on\n", "stderr": ""}, state
    assert session.call("stopTask", taskId=task)["structuredContent"]["taskStatus"] == "canceled"
    assert session.call("getTask", taskId="none") == refusal_of("Task not found: none")
    print("startCommandExecution, getTask, stopTask")


def ended_task(session, task):
    state = session.call("getTask", taskId=task)["structuredContent"]
    return state if state["taskStatus"] not in ("submitted", "working") else None


def files(session):
    content = [
        {"path": "d/e/text é", "text": "é\r\n"},
        {"path": "binary", "blob": BINARY},
        {"path": "empty", "blob": b""},
    ]
    assert session.call("writeFiles", content=content) == said("Successfully wrote all 3 files")
    assert session.execute("print(open('d/e/text é', newline='').read() == 'é\\r\\n')") == succeeded("True\n")
    found = session.call("readFiles", paths=["d/e/text é", "binary", "empty"])
    assert found == {"content": [text_file("d/e/text é", "é\r\n"), blob("binary", BINARY), text_file("empty", "")]} | OK
    made = "open('made', 'wb').write(bytes(range(256)) * 100)"
    assert session.execute(made) == succeeded("")
    assert session.call("readFiles", paths=["made"])["content"] == [blob("made", BINARY)]
    listed = {"content": [link("e", "d/e", None)]} | OK
    assert without_sizes(session.call("listFiles", directoryPath="d")) == listed
    assert without_sizes(session.call("listFiles", path="d")) == listed
    root = session.call("listFiles")["content"]
    assert [item["name"] for item in root] == ["binary", "d", "empty", "made"], root
    assert root[0] == link("binary", "binary", len(BINARY)), root
    assert session.call("removeFiles", paths=["d", "empty", "made"]) == said("Successfully removed 3 files")
    assert [item["name"] for item in session.call("listFiles")["content"]] == ["binary"]
    print("writeFiles, readFiles, listFiles, removeFiles: text and binary, both ways")


def paths(session):
    for path in ("/etc/passwd", "../x", "a/../../x"):
        refusal = refusal_of(f"Path must be relative to the working directory: {path}")
        assert session.call("readFiles", paths=[path]) == refusal
        assert session.call("removeFiles", paths=[path]) == refusal
        assert session.call("listFiles", directoryPath=path) == refusal
        content = [{"path": "none of it", "text": ""}, {"path": path, "text": ""}]
        assert session.call("writeFiles", content=content) == refusal
    missing = refusal_of("File not found: none of it")
    assert session.call("readFiles", paths=["none of it"]) == missing
    assert session.call("removeFiles", paths=["none of it"]) == missing
    print("paths: absolute, escaping and missing ones are refused")


def odd_streams(session):
    run = "print('hello you')"
    for action in ("initial", "unknown_event", "split"):
        session.fault(action=action)
        assert session.execute(run) == succeeded("hello you\n"), action
    session.fault(action="trickle", seconds=0.3)
    assert session.execute(run) == succeeded("hello you\n")
    session.fault(action="two")
    first, second = session.events("executeCode", code=run)
    assert first == {"content": [text("hello")], "structuredContent": {"stdout": "hello"}}, first
    assert second["structuredContent"].pop("executionTime") >= 0
    assert second == succeeded(" you\n"), second
    session.fault(action="image")
    shown, picture, page = session.execute(run)["content"]
    assert (shown, picture["type"], picture["mimeType"]) == (text("hello you\n"), "image", "image/png")
    assert picture["data"].startswith(b"\x89PNG") and page["resource"]["mimeType"] == "text/html"
    session.fault(action="silent")
    assert session.execute(run) == said("")
    session.fault(action="huge", bytes=1_000_000)
    assert session.execute(run)["structuredContent"]["stdout"] == "x" * 1_000_000
    session.fault(action="bare_error", text="no")
    assert session.execute(run) == refusal_of("no")
    print("odd streams: initial, unknown_event, two, split, trickle, image, silent, huge, bare_error")


def broken_streams(session):
    for member in ("throttlingException", "validationException", "internalServerException"):
        session.fault(action="mid", exception=member)
        error = fails(EventStreamError, lambda: session.execute("1"))
        assert error.response["Error"] == {"Code": member, "Message": f"injected {member}"}, error.response
    session.fault(action="mid", exception="error")
    error = fails(EventStreamError, lambda: session.execute("1"))
    assert error.response["Error"] == {"Code": "InternalError", "Message": "injected error"}, error.response
    for action in ("bad_crc", "garbage"):
        session.fault(action=action)
        fails(ChecksumMismatch, lambda: session.execute("1"))
    for action in ({"action": "empty"}, {"action": "trunc"}, {"action": "flood", "bytes": 100_000}):
        session.fault(**action)
        assert session.events("executeCode", code="1") == [], action  # boto3 does not notice
    for status in (400, 402, 403, 404, 409):
        session.fault(status=status)
        error = fails(ClientError, lambda: session.execute("1"))
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == status, error.response
    print("broken streams: exceptions, checksums, none at all; refusals before them")


def retries(session):
    """Why our own client does not let the SDK repeat a call."""
    for order in ({"status": 500}, {"action": "drop"}):
        before = session.service.back_door("stats")
        session.fault(**order, after=True, times=2)
        session.execute("count = 0")
        after = session.service.back_door("stats")
        assert after["executed"] - before["executed"] == 3, (before, after)
        assert after["calls"]["executeCode"] - before["calls"]["executeCode"] == 3, (before, after)
    log = session.service.back_door("requests")[-3:]
    assert [(entry["tool"], entry["session"]) for entry in log] == [("executeCode", session.id)] * 3, log
    assert log[0]["arguments"] == {"code": "count = 0", "language": "python"}, log
    print("retries: boto3 by itself ran the same code three times")


def deaths(session):
    session.execute("kept = 1")
    assert session.execute("import os; os._exit(1)") == failed("", "kernel died\n", 137)
    assert session.execute("print('kept' in globals())") == succeeded("False\n")
    session.service.back_door("kill_kernel", {"id": session.id})
    assert session.execute("print(2)") == succeeded("2\n")
    print("deaths: a new kernel after one that died")


def kernels(session, kind, output):
    session.execute("kept = 41")
    assert session.execute("kept + 1") == succeeded(output)
    where = "import threading; print(threading.current_thread() is threading.main_thread())"
    assert session.execute(where) == succeeded(f"{kind == 'ipython'}\n")
    error = session.execute("1/0")["structuredContent"]
    assert (error["exitCode"], "ZeroDivisionError" in error["stderr"]) == (1, True), error
    assert session.execute("print('kept' in globals())", clearContext=True) == succeeded("False\n")
    if kind == "ipython":
        asynchronous = "import asyncio; await asyncio.sleep(0, 'awaited')"
        assert session.execute(asynchronous) == succeeded("'awaited'\n")
    print(f"kernel: {kind}")


def refusals(service):
    for secret, region in (("wrong", service.region), ("SECRETTEST", "us-east-1")):
        client = service.client_with(secret, region)
        start = client.start_code_interpreter_session
        refused("AccessDeniedException", 403, lambda: start(codeInterpreterIdentifier=SYSTEM))  # noqa: B023
    with service.session():
        refused("ServiceQuotaExceededException", 402, service.start)
    with service.session():
        pass
    print("refusals: wrong secret, wrong region, too many sessions")


def other_ways(service):
    with service.session() as session:
        found = session.call("executeCommand", command="echo out; echo problem >&2; exit 7")
        assert found == failed("out\n", "problem\n", 7), found
        assert session.execute("print('123456789')") == succeeded("12345")
        session.call("writeFiles", content=[{"path": "t", "text": "a\r\nb"}, {"path": "b", "blob": BINARY}])
        assert session.call("readFiles", paths=["t"])["content"] == [text_file("t", "a\nb")]
        assert session.call("readFiles", paths=["b"]) == refusal_of("Not a text file: b")
    print("other ways: pipes, a limit for output, files of text only")


OK = {"isError": False}


def text(content):
    return {"type": "text", "text": content}


def said(content):
    return {"content": [text(content)]} | OK


def refusal_of(message):
    return {"content": [text(message)], "isError": True}


def succeeded(stdout, stderr=""):
    structured = {"stdout": stdout, "stderr": stderr, "exitCode": 0}
    return {"content": [text(stdout)], "structuredContent": structured} | OK


def failed(stdout, stderr, code, shown=None):
    structured = {"stdout": stdout, "stderr": stderr, "exitCode": code}
    content = [text(stdout + stderr if shown is None else shown)]
    return {"content": content, "structuredContent": structured, "isError": True}


def text_file(path, content):
    return resource(path, {"type": "text", "mimeType": "text/plain", "text": content})


def blob(path, content):
    return resource(path, {"type": "blob", "mimeType": "application/octet-stream", "blob": content})


def resource(path, fields):
    return {"type": "resource", "resource": {"uri": f"file:///{path}", **fields}}


def link(name, path, size):
    kind, description = ("inode/directory", "Directory") if size is None else ("application/octet-stream", "File")
    found = {"type": "resource_link", "uri": f"file:///{path}", "name": name, "mimeType": kind}
    return {**found, "description": description} | ({} if size is None else {"size": size})


def without_sizes(result):
    for item in result["content"]:
        assert item.pop("size") >= 0, item
    return result


def without_metadata(answer):
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


def until(condition):
    """Asks again until there is an answer; that of the condition."""
    end = time.monotonic() + SECONDS_AT_MOST
    while not (answer := condition()):
        assert time.monotonic() < end, "it never came"
    return answer


def refused(code, status, call):
    error = fails(ClientError, call)
    assert (error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
    return error


def fails(kind, call):
    try:
        answer = call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected, not {answer}")


if __name__ == "__main__":
    main()
