"""Half of the generated requests go to a session and a run that are there."""

import json
import os
import random
import urllib.request

import schemathesis

URL = os.environ["INTERPRETERD_URL"]


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def known():
    """A living session and a run with a file; made anew when a generated DELETE has ended the session."""
    with urllib.request.urlopen(f"{URL}/v1/sessions?limit=5", timeout=30) as answer:
        living = [s for s in json.load(answer)["data"] if s["state"] in ("ready", "busy")]
    session = living[0] if living else post("/v1/sessions", {"lifetime_seconds": 3600})
    if "run" not in known.__dict__:
        known.run = post("/v1/execute", {"code": "open('a.txt', 'w').write('x')"})["run_id"]
    return {"session_id": session["id"], "run_id": known.run}


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if path_parameters and random.random() < 0.5:
        ids = known()
        for name in path_parameters:
            if name in ids:
                path_parameters[name] = ids[name]
    return path_parameters


@schemathesis.hook
def map_body(context, body):
    """Times are kept short, so that generated code which waits does not hold the run up."""
    if isinstance(body, dict):
        seconds = body.get("timeout_seconds")
        if isinstance(seconds, (int, float)) and seconds > 2:
            body["timeout_seconds"] = 2
    return body
