"""E2B's own Python clients against the double of the E2B cloud: what they accept is what the cloud says.

usage: e2b_official.py [--python PATH], PATH being the Python of the kernels; with matplotlib and pandas there,
charts and tables are compared too. The double is started here, once for each way of starting it.
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import e2b
import e2b_official_async
from e2b import CommandExitException, SandboxQuery, SandboxState
from e2b_code_interpreter import Sandbox

DOUBLES = pathlib.Path(__file__).resolve().parent.parent / "doubles"
LIBRARIES = "import matplotlib, pandas"
SETTINGS = {"E2B_API_KEY", "E2B_DOMAIN", "E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DEBUG"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    python = parser.parse_args().python
    for name in SETTINGS:
        os.environ.pop(name, None)
    with double("--python", python, "--interrupt-window", "0"):
        lifecycle()
        listing()
        with sandbox() as box:
            code(box)
            failures(box)
            contexts(box)
            commands(box)
            background_commands(box)
            files(box)
            signed_urls(box)
            if subprocess.run([python, "-c", LIBRARIES], stderr=subprocess.DEVNULL).returncode == 0:
                charts_and_tables(box)
        asyncio.run(e2b_official_async.main())
    with double("--api-key", "right=team", "--create-rate", "1", "--max-sandboxes", "1", key="right"):
        refusals()
    with double("--interrupt-window", "60"):
        swallowed_run()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("e2b", "e2b-code-interpreter"))
    print(f"the official E2B clients accept the double ({versions})")


@contextlib.contextmanager
def double(*options, key="any"):
    """Starts the double and points the clients to it; it ends with its standard input."""
    command = [sys.executable, "-m", "e2b_cloud", *options]
    environment = {**os.environ, "PYTHONPATH": str(DOUBLES)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        base = process.stdout.readline().removeprefix("e2b double on ").strip()
        os.environ.update(E2B_API_URL=base, E2B_SANDBOX_URL=base, E2B_API_KEY=key)
        try:
            yield base
        finally:
            process.stdin.close()
            assert process.wait(20) == 0, process.returncode


@contextlib.contextmanager
def sandbox(**options):
    box = Sandbox.create(timeout=120, **options)
    try:
        yield box
    finally:
        box.kill()


def back_door(path, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["E2B_API_URL"] + "/_double/" + path, data, method=method)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def lifecycle():
    metadata = {"app": "x y&z", "é/%": "=&"}
    network = {"allow_public_traffic": False, "allow_out": ["1.1.1.1"], "deny_out": ["0.0.0.0/0"]}
    box = Sandbox.create(timeout=60, metadata=metadata, envs={"A": "1"}, network=network, idempotency_key="one-key")
    same = Sandbox.create(timeout=60, metadata=metadata, envs={"A": "1"}, network=network, idempotency_key="one-key")
    assert same.sandbox_id == box.sandbox_id
    fails(e2b.SandboxException, "409", lambda: Sandbox.create(timeout=61, idempotency_key="one-key"))
    assert box.is_running() and box.traffic_access_token
    assert box.run_code("import os; os.environ['A']").text == "1"
    info = box.get_info()
    assert info.metadata == metadata and info.state == SandboxState.RUNNING and info.template_id, info
    assert info.network["allow_out"] == ["1.1.1.1"] and info.lifecycle["on_timeout"] == "kill", info
    box.set_timeout(600)
    assert 500 < (box.get_info().end_at - box.get_info().started_at).total_seconds() <= 601
    box.update_network({"allow_out": ["8.8.8.8"], "deny_out": ["0.0.0.0/0"]})
    assert box.get_info().network["allow_out"] == ["8.8.8.8"]
    assert len(box.get_metrics()) == 1
    paused_and_resumed(box)
    assert box.kill() is True and box.kill() is False
    assert box.is_running() is False
    fails(e2b.SandboxException, "not found", lambda: box.run_code("1"))
    fails(e2b.SandboxException, "not found", lambda: box.commands.run("true"))
    fails(e2b.NotFoundException, "", box.get_info)
    fails(e2b.NotFoundException, "", lambda: Sandbox.connect(box.sandbox_id))
    fails(e2b.SandboxException, "404: template", lambda: Sandbox.create("no-such-template"))
    fails(e2b.InvalidArgumentException, "", lambda: Sandbox.create(idempotency_key="Not this"))


def paused_and_resumed(box):
    box.run_code("kept = 42")
    box.pause()
    assert Sandbox.list(SandboxQuery(state=[SandboxState.PAUSED])).next_items()[0].sandbox_id == box.sandbox_id
    assert box.is_running() is False
    again = Sandbox.connect(box.sandbox_id, timeout=60)
    assert again.run_code("kept").text == "42" and again.traffic_access_token == box.traffic_access_token
    with sandbox(lifecycle={"on_timeout": "pause", "auto_resume": True}) as sleeper:
        sleeper.run_code("kept = 43")
        sleeper.pause()
        assert sleeper.run_code("kept").text == "43"  # the run woke it
    with sandbox() as box:
        box.run_code("open('/home/user/kept', 'w').write('44')")
        box.pause(keep_memory=False)
        box = box.connect()
        assert box.files.read("kept") == "44"
        assert box.run_code("kept").error.name == "NameError"


def listing():
    metadata = {"app": "x y&z", "é/%": "=&"}
    with contextlib.ExitStack() as stack:
        ids = [stack.enter_context(sandbox(metadata=metadata)).sandbox_id for _ in range(3)]
        stack.enter_context(sandbox(metadata={**metadata, "é/%": "other"}))
        pages = Sandbox.list(SandboxQuery(metadata=metadata), limit=2)
        first, second = pages.next_items(), pages.next_items()
        assert [info.sandbox_id for info in first + second] == ids[::-1] and len(first) == 2, (first, second)
        assert not pages.has_next and first[0].metadata == metadata
        other_team = Sandbox.list(api_key="another team's")
        assert other_team.next_items() == []
        fails(e2b.NotFoundException, "", lambda: Sandbox.get_info(ids[0], api_key="another team's"))


RICH = """
class Rich:
    def __repr__(self): return "'quoted'"
    def _repr_html_(self): return "<b>h</b>"
    def _repr_markdown_(self): return "**m**"
    def _repr_svg_(self): return "<svg/>"
    def _repr_png_(self): return b"png"
    def _repr_jpeg_(self): return b"jpeg"
    def _repr_pdf_(self): return b"pdf"
    def _repr_latex_(self): return "$l$"
    def _repr_json_(self): return {"j": float("nan")}
    def _repr_javascript_(self): return "js()"
    def _repr_mimebundle_(self, include=None, exclude=None): return {"application/x-mine": {"k": 1}}
display(Rich())
Rich()
"""


def code(box):
    seen = []
    run = box.run_code(
        "import sys\nprint('é 😀')\nprint('no', file=sys.stderr)\ndisplay(1)\n[1, 2.5, None, float('nan')]",
        on_stdout=lambda message: seen.append(message.line),
        on_stderr=lambda message: seen.append(message.line),
        on_result=lambda result: seen.append(result.text),
    )
    assert seen == ["é 😀\n", "no\n", "1", "[1, 2.5, None, nan]"], seen
    assert run.logs.stdout == ["é 😀\n"] and run.logs.stderr == ["no\n"] and run.error is None, run
    assert [result.is_main_result for result in run.results] == [False, True]
    assert run.results[1].json == [1, 2.5, None, None] and run.execution_count == 1, run
    shown, main = box.run_code(RICH).results
    assert (shown.is_main_result, main.is_main_result) == (False, True)
    for result in (shown, main):
        assert (result.text, result.html, result.markdown) == ("quoted", "<b>h</b>", "**m**"), result.raw
        assert (result.svg, result.png, result.jpeg, result.pdf) == ("<svg/>", "cG5n", "anBlZw==", "cGRm"), result.raw
        assert (result.latex, result.json, result.javascript) == ("$l$", {"j": None}, "js()"), result.raw
        assert result.extra == {"application/x-mine": {"k": 1}}, result.raw
    assert box.run_code("import os; os.environ['K']", envs={"K": "v w"}).text == "v w"
    assert box.run_code("os.environ.get('K', 'gone')").text == "gone"
    assert box.run_code("a = 1;a;").results == [] and box.run_code("None").results == []
    assert box.run_code("import asyncio\nawait asyncio.sleep(0, 'awaited')").text == "awaited"
    assert box.run_code("!echo $((40 + 2))").logs.stdout == ["42\n"]
    assert box.run_code("%%bash\necho from bash").logs.stdout == ["from bash\n"]
    big = box.run_code("print('x' * 3_000_000)")
    assert sum(map(len, big.logs.stdout)) == 3_000_001


def failures(box):
    error = box.run_code("def f(x):\n    return 1 / x\nf(0)").error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero"), error
    assert "line 3" in error.traceback and "----> 2     return 1 / x" in error.traceback, error.traceback
    assert box.run_code("def f(:").error.name == "SyntaxError"
    error = box.run_code("import sys; sys.exit(3)").error
    assert (error.name, error.value) == ("SystemExit", "3"), error
    assert box.run_code("input()").error.name == "StdinNotImplementedError"
    assert box.run_code("1", envs={"K": "it's"}).error.name == "SyntaxError"  # pasted as it is
    fails(e2b.TimeoutException, "timed out", lambda: box.run_code("kept = 1\nwhile True: pass", timeout=0.2))
    assert box.run_code("kept").text == "1"
    error = box.run_code("import os; os._exit(1)").error
    assert (error.name, error.value) == ("ContextRestarting", "Context was restarted"), error
    assert box.run_code("kept").error.name == "NameError"
    back_door("faults", {"match": "POST /execute", "action": "no_end"})
    assert box.run_code("5").text == "5"
    back_door("faults", {"match": "POST /execute", "status": 502, "body": {"message": "The sandbox was not found"}})
    fails(e2b.TimeoutException, "not found", lambda: box.run_code("5"))


def contexts(box):
    box.files.make_dir("/home/user/work")
    context = box.create_code_context(cwd="/home/user/work")
    assert box.run_code("import os; os.getcwd()", context=context).text == "/home/user/work"
    box.run_code("x = 1")
    assert box.run_code("x", context=context).error.name == "NameError"
    listed = box.list_code_contexts()
    assert [one.language for one in listed] == ["python", "javascript", "python"], listed
    assert listed[-1].id == context.id and listed[-1].cwd == "/home/user/work"
    box.restart_code_context(context)
    assert box.run_code("import os; os.getcwd()", context=context).text == "/home/user"
    box.remove_code_context(context)
    fails(e2b.NotFoundException, "not found", lambda: box.run_code("1", context=context))
    missing = box.create_code_context(cwd="/no/such/directory")
    assert box.run_code("import os; os.getcwd()", context=missing).text == "/home/user"
    fails(Exception, "Failed to create context", lambda: box.create_code_context(language="cobol"))
    box.remove_code_context(missing.id)


def commands(box):
    seen = []
    done = box.commands.run(
        "echo out; echo problem >&2; echo $A $HOME $PWD",
        envs={"A": "é b"},
        cwd="/tmp",
        on_stdout=lambda text: seen.append(text),
        on_stderr=lambda text: seen.append(text),
    )
    assert (done.exit_code, done.stdout, done.stderr) == (0, "out\né b /home/user /tmp\n", "problem\n"), done
    assert "".join(sorted(seen)), seen
    exit_error = fails(CommandExitException, "", lambda: box.commands.run("echo partial; exit 3"))
    assert (exit_error.exit_code, exit_error.stdout) == (3, "partial\n"), exit_error
    assert box.commands.run("echo $HOME", user="root").stdout == "/root\n"
    fails(e2b.AuthenticationException, "", lambda: box.commands.run("true", user="nobody"))
    fails(e2b.InvalidArgumentException, "cwd", lambda: box.commands.run("true", cwd="/no/such"))
    fails(e2b.TimeoutException, "", lambda: box.commands.run("exec sleep 60", timeout=0.3))
    big = box.commands.run("head -c 300000 /dev/zero | tr '\\0' é")
    assert len(big.stdout.encode("utf-8", "replace")) >= 300000


def background_commands(box):
    echo = box.commands.run("read line; echo got $line; cat", background=True, stdin=True)
    assert echo.pid in [process.pid for process in box.commands.list()]
    box.commands.send_stdin(echo.pid, "hello\n")
    box.commands.send_stdin(echo.pid, "more")
    box.commands.close_stdin(echo.pid)
    assert echo.wait().stdout == "got hello\nmore"
    sleeper = box.commands.run("exec sleep 600", background=True)
    joined = box.commands.connect(sleeper.pid)
    assert sleeper.kill() is True
    assert fails(CommandExitException, "", joined.wait).exit_code == -1
    assert fails(CommandExitException, "", sleeper.wait).exit_code == -1
    assert box.commands.kill(sleeper.pid) is False
    fails(e2b.NotFoundException, "", lambda: box.commands.connect(999_999))
    terminal = box.pty.create(e2b.PtySize(rows=24, cols=80))
    box.pty.send_stdin(terminal.pid, b"stty size; exit 4\n")
    written = bytearray()
    assert fails(CommandExitException, "", lambda: terminal.wait(on_pty=written.extend)).exit_code == 4
    assert b"24 80" in written, written


def files(box):
    assert not box.files.exists("/files")
    info = box.files.write("/files/a é+ b.txt", "text é")
    assert (info.path, info.name, info.type) == ("/files/a é+ b.txt", "a é+ b.txt", e2b.FileType.FILE), info
    assert box.files.read("/files/a é+ b.txt") == "text é"
    data = bytes(range(256)) * 1000
    for options in ({}, {"use_octet_stream": True}, {"gzip": True}):
        box.files.write("raw.bin", data, **options)
        assert bytes(box.files.read("/home/user/raw.bin", format="bytes")) == data, options
        assert bytes(box.files.read("~/raw.bin", format="bytes", gzip=True)) == data
    assert b"".join(box.files.read("raw.bin", format="stream")) == data
    entries = [{"path": "/files/one", "data": "1"}, {"path": "sub/two", "data": b""}]
    assert [entry.path for entry in box.files.write_files(entries)] == ["/files/one", "/home/user/sub/two"]
    assert box.files.read("sub/two") == ""
    box.files.write("/files/meta", "m", metadata={"kind": "test"})
    assert box.files.get_info("/files/meta").metadata == {"kind": "test"}
    assert [entry.name for entry in box.files.list("/files")] == ["a é+ b.txt", "meta", "one"]
    deep = {entry.path: entry for entry in box.files.list("/home/user", depth=2)}
    assert deep["/home/user/sub"].type == e2b.FileType.DIR and deep["/home/user/sub/two"].size == 0, deep
    entry = box.files.get_info("/files/one")
    assert (entry.size, entry.mode, entry.permissions, entry.owner) == (1, 0o644, "-rw-r--r--", "user"), entry
    assert box.files.make_dir("/files/d/e") is True and box.files.make_dir("/files/d/e") is False
    assert box.files.rename("/files/one", "/files/d/uno").path == "/files/d/uno"
    assert box.files.exists("/files/d/uno") and not box.files.exists("/files/one")
    box.files.remove("/files/d")
    assert not box.files.exists("/files/d")
    box.run_code("import os; os.symlink('/files/meta', '/files/link')")
    link = box.files.get_info("/files/link")
    assert (link.symlink_target, link.type) == ("/files/meta", e2b.FileType.SYMLINK), link
    assert box.files.read("/files/link") == "m"
    fails(e2b.NotFoundException, "does not exist", lambda: box.files.read("/files/none"))
    fails(e2b.NotFoundException, "", lambda: box.files.list("/none"))
    fails(e2b.InvalidArgumentException, "directory", lambda: box.files.write("/files", "x"))
    back_door("faults", {"match": "POST /files", "status": 507, "body": {"code": 507, "message": "disk full"}})
    fails(e2b.NotEnoughSpaceException, "", lambda: box.files.write("/files/x", "x"))
    watched(box)


def watched(box):
    watch = box.files.watch_dir("/files", recursive=True, include_entry=True)
    box.files.write("/files/new", "n")
    box.files.make_dir("/files/below")
    box.files.write("/files/below/leaf", "")
    box.files.rename("/files/new", "/files/newer")
    box.files.remove("/files/newer")
    events = [(event.name, event.type.value) for event in watch.get_new_events()]
    expected = [
        ("new", "create"),
        ("new", "write"),
        ("below", "create"),
        ("below/leaf", "create"),
        ("new", "rename"),
        ("newer", "create"),
        ("newer", "remove"),
    ]
    assert [event for event in events if event[1] != "chmod"] == expected, events
    watch.stop()


def signed_urls(box):
    def fetch(url, data=None, headers=None):
        with urllib.request.urlopen(urllib.request.Request(url, data, headers or {})) as response:
            return response.status, response.read()

    box.files.write("/files/signed é", "0123456789")
    url = box.download_url("/files/signed é", use_signature_expiration=60)
    assert fetch(url) == (200, b"0123456789")
    assert fetch(url, headers={"Range": "bytes=2-4"}) == (206, b"234")
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nsigned\r\n--b--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert fetch(box.upload_url("/files/up"), form, kind)[0] == 200 and box.files.read("/files/up") == "signed"
    assert fails(urllib.error.HTTPError, "", lambda: fetch(url + "0")).code == 401
    late = box.download_url("/files/signed é", use_signature_expiration=-10)
    assert "expired" in fails(urllib.error.HTTPError, "", lambda: fetch(late)).read().decode()


def charts_and_tables(box):
    run = box.run_code(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6], label='L')\nplt.title('T')\n"
        "plt.xlabel('x (m)')\nplt.show()\nfig, ax = plt.subplots()\nax.bar(['a', 'b'], [1, 2])\nNone",
        timeout=60,
    )
    line, bar = (result.chart for result in run.results)
    assert all(result.png for result in run.results), run
    assert (line.type.value, line.title, line.x_unit, line.elements[0].label) == ("line", "T", "m", "L"), line
    assert [tuple(point) for point in line.elements[0].points] == [(1, 4), (2, 5), (3, 6)]
    assert [(one.label, one.value) for one in bar.elements] == [("a", 1.0), ("b", 2.0)], bar
    table = box.run_code(
        "import pandas as pd\npd.DataFrame({'a': [1, 2], 't': [pd.Timestamp('2024-01-02'), pd.NaT], 'n': [1.5, None]})"
    ).results[0]
    assert table.data == {"a": [1, 2], "t": ["2024-01-02T00:00:00", "NaT"], "n": [1.5, None]}, table.data
    assert "<table" in table.html and table.is_main_result


def refusals():
    fails(e2b.AuthenticationException, "API key", lambda: Sandbox.create(api_key="wrong"))
    with sandbox() as box:
        fails(e2b.RateLimitException, "Rate limit", lambda: Sandbox.create(retries=0))
        before = time.monotonic()
        # the client waits as Retry-After says; then there is one sandbox too many
        fails(e2b.RateLimitException, "maximum number", lambda: Sandbox.create(retries=1))
        assert time.monotonic() - before > 0.4
        log = back_door("requests", method="DELETE")
        assert [entry["path"] for entry in log if entry["method"] == "POST"] == ["/v2/sandboxes"] * 5, log
        back_door("kill_sandbox", {"id": box.sandbox_id})
        assert back_door("sandboxes") == [] and not box.is_running()


def swallowed_run():
    """After a client that went away the next run is lost, as in the real server."""
    with sandbox() as box:
        fails(e2b.TimeoutException, "", lambda: box.run_code("while True: pass", timeout=0.2))
        fails(e2b.TimeoutException, "", lambda: box.run_code("1", timeout=0.2))
        box.restart_code_context(box.list_code_contexts()[0])
        running, killed = threading.Event(), threading.Thread(target=lambda: (running.wait(), box.kill()))
        killed.start()
        lost = "import time; print(1); time.sleep(60)"
        context = box.create_code_context()
        fails(e2b.TimeoutException, "", lambda: box.run_code(lost, context=context, on_stdout=lambda _: running.set()))
        killed.join()


def fails(kind, words, call):
    try:
        answer = call()
    except kind as error:
        assert words in str(error), error
        return error
    raise AssertionError(f"{kind.__name__} was expected, not {answer}")


if __name__ == "__main__":
    main()
