"""Sessions that ask for packages: the first installs them, later ones find them there."""

import time

from bench import Bench
from service import Service

PACKAGES = ["tabulate==0.10.0", "inflection==0.5.1", "humanize==4.17.0"]
CODE = "import tabulate, inflection, humanize\nprint(inflection.pluralize('box'), humanize.intcomma(1234567))"
SAID = "boxes 1,234,567\n"
INSTALL_SECONDS = 300


class NotOffered(Exception):
    """The service takes no packages."""


FIRST = "first session, installs"
AT_ONCE = "later session, asked at once"
RESTED = "later session, after a rest"
LATER = {AT_ONCE: False, RESTED: True}


def run(bench: Bench) -> None:
    with bench.service() as service:
        try:
            bench.record.add("packages_first", FIRST, 0, sample(service), "ms")
        except NotOffered as refusal:
            bench.note(f"skipped, the program refuses: {refusal}")
            return
        for turn in range(max(10, bench.sizes.samples)):
            for name, rests in LATER.items():
                if rests:
                    service.settle()
                bench.record.add("packages", name, turn, sample(service), "ms")


def sample(service: Service) -> float:
    """The time until the session is ready, whose cell must then find the packages."""
    started = time.perf_counter()
    answer = service.client.post("/v1/sessions", {"packages": PACKAGES})
    if answer.status == 409:
        raise NotOffered(answer.json()["detail"])
    session = answer.expect(201).json()
    while session["state"] != "ready":
        assert session["state"] == "starting", session
        assert time.perf_counter() - started < INSTALL_SECONDS, session
        time.sleep(0.002)
        session = service.client.call("GET", f"/v1/sessions/{session['id']}").expect(200).json()
    taken = (time.perf_counter() - started) * 1000
    said = service.exec(session["id"], CODE)["stdout"]
    assert said == SAID, said
    service.delete(session["id"])
    return taken
