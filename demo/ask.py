#!/usr/bin/env python3
"""The demo: one question with a file, answered on the real sandbox by a recorded model.

Standard library only. With --url it asks a service that is running already (and its own model).
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request
import uuid

HERE = pathlib.Path(__file__).resolve().parent
QUESTION = "Which region made more revenue, and when did that change? Draw a chart and save the table."


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--program", help="the interpreterd program to start")
    arguments.add_argument("--url", help="a running service to ask instead")
    arguments.add_argument("--output", default=HERE / "output", type=pathlib.Path, help="where the files go")
    options = arguments.parse_args()
    if options.url:
        show(options.url, options.output)
        return
    # other users must be able to enter: the service becomes one when it is started as root
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        recording = pathlib.Path(folder, "recording.json")
        recording.write_bytes((HERE / "recording.json").read_bytes())
        settings = {
            "INTERPRETERD_LISTEN": "127.0.0.1:0",
            "INTERPRETERD_DATA_DIR": f"{folder}/data",
            "INTERPRETERD_MODEL_PROTOCOL": "replay",
            "INTERPRETERD_MODEL_REPLAY_FILE": str(recording),
            "INTERPRETERD_LOG": "warn",
        }
        service = subprocess.Popen(
            [options.program, "serve"], stdout=subprocess.PIPE, text=True, env={**os.environ, **settings}
        )
        try:
            line = service.stdout.readline()
            if not line:
                sys.exit("the service did not start, see above")
            show(line.split()[-1], options.output)
        finally:
            service.terminate()
            service.wait(30)


def show(url, output):
    print(f"question: {QUESTION}\nfile: sales.csv\n")
    run = ask(url)
    for number, result in enumerate(run["code_exec_results"], 1):
        print(f"--- cell {number} " + "-" * 60)
        print(indent(result["code"], ">>> "))
        print(indent(result["execution"]["text"], "    "))
    print("--- answer " + "-" * 60)
    print(run["text"])
    usage = run["usage"]
    tokens = f"{usage['input_tokens']} tokens in, {usage['output_tokens']} out"
    print(f"\n{run['status']} after {run['turns']} turns, {tokens}, {run['duration_ms']:.0f} ms")
    output.mkdir(parents=True, exist_ok=True)
    for file in run["output_files"]:
        with urllib.request.urlopen(url + file["url"], timeout=30) as content:
            path = output / file["name"]
            path.write_bytes(content.read())
        print(f"file: {os.path.relpath(path)} ({file['size_bytes']} bytes, {file['mime']})")
    if run["status"] != "success":
        sys.exit(1)


def ask(url):
    """POST /v1/interpret as multipart/form-data: a JSON part and a file part."""
    boundary = uuid.uuid4().hex
    request = json.dumps({"message": QUESTION})
    body = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="request"\r\n\r\n{request}\r\n'
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="sales.csv"\r\n\r\n'
        f"{(HERE / 'sales.csv').read_text()}\r\n--{boundary}--\r\n"
    )
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    call = urllib.request.Request(f"{url}/v1/interpret", body.encode(), headers)
    with urllib.request.urlopen(call, timeout=300) as answer:
        return json.load(answer)


def indent(text, prefix):
    return "\n".join(prefix + line for line in text.rstrip("\n").split("\n"))


main()
