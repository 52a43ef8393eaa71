"""Interpret with a model that answers at once, and fifty of them with one that takes a second a turn."""

import contextlib
import http.client
import time
from concurrent.futures import ThreadPoolExecutor

import names
from bench import Bench
from client import JSON, Answer, encode
from model import COMPLETIONS, Model
from service import Service

TURNS = 5
BLOCK = 5
WARMING = 20
QUESTION = encode({"message": "How much is one and one?"})

MANY = 50
MANY_TURNS = 3
DELAY_SECONDS = 1.0
IDEAL_SECONDS = MANY_TURNS * DELAY_SECONDS
AT_ONCE = f"{MANY} at once"


def run(bench: Bench) -> None:
    one_by_one(bench)
    at_once(bench)


def one_by_one(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(contextlib.closing(Model(TURNS)))
        service = stack.enter_context(bench.service(env=model.settings()))
        alone = stack.enter_context(contextlib.closing(http.client.HTTPConnection(*model.address)))
        path = f"/v1/interpret?session_id={service.create()}"
        service.settle()
        for _ in range(WARMING):
            check(service.client.call("POST", path, QUESTION), TURNS)
        # the last turn's request, the longest of them
        body = model.asked()
        for _ in range(WARMING):
            post(alone, COMPLETIONS, body).expect(200)
        model.spent_ms()
        for turn in range(max(1, bench.sizes.samples // BLOCK)):
            ours(bench, service, model, path, turn)
            floor(bench, model, alone, body, turn)


def ours(bench: Bench, service: Service, model: Model, path: str, turn: int) -> None:
    for _ in range(BLOCK):
        started = time.perf_counter()
        answer = service.client.call("POST", path, QUESTION)
        whole = (time.perf_counter() - started) * 1000
        cells, model_part = check(answer, TURNS), model.spent_ms()
        for name, value in (
            (names.OURS, whole),
            (names.IN_SANDBOX, cells),
            (names.IN_MODEL, model_part),
            (names.OWN_PART, whole - cells - model_part),
        ):
            bench.record.add("interpret", name, turn, value / TURNS, "ms")


def floor(bench: Bench, model: Model, alone: http.client.HTTPConnection, body: bytes, turn: int) -> None:
    for _ in range(BLOCK):
        started = time.perf_counter()
        answer = post(alone, COMPLETIONS, body)
        taken = (time.perf_counter() - started) * 1000
        assert answer.expect(200).json()["choices"][0]["message"]["content"] == "done", answer
        bench.record.add("interpret", names.MODEL_FLOOR, turn, taken, "ms")
        bench.record.add("interpret", names.MODEL_FLOOR_OWN, turn, taken - model.spent_ms(), "ms")


def at_once(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(contextlib.closing(Model(MANY_TURNS, DELAY_SECONDS)))
        service = stack.enter_context(bench.service(env=model.settings()))
        callers = stack.enter_context(ThreadPoolExecutor(MANY))
        for turn in range(bench.sizes.interpret_rounds):
            # the last round's sandboxes must be gone, and the pool be full again
            service.settle()
            time.sleep(0.5)
            started = time.perf_counter()
            answers = list(callers.map(lambda _: one_shot(service), range(MANY)))
            seconds = time.perf_counter() - started
            for answer in answers:
                check(answer, MANY_TURNS)
            bench.record.add("interpret_at_once", AT_ONCE, turn, seconds, "s")
            bench.record.add("interpret_at_once_ratio", AT_ONCE, turn, seconds / IDEAL_SECONDS, "times the ideal")


def one_shot(service: Service) -> Answer:
    """An interpret in a sandbox of its own, through a connection of its own."""
    with contextlib.closing(http.client.HTTPConnection(*service.address)) as connection:
        return post(connection, "/v1/interpret", QUESTION)


def post(connection: http.client.HTTPConnection, path: str, body: bytes) -> Answer:
    connection.request("POST", path, body, {"content-type": JSON})
    answer = connection.getresponse()
    return Answer(answer.status, answer.read())


def check(answer: Answer, turns: int) -> float:
    """How long the cells of an interpret ran; all of them must have worked."""
    run = answer.expect(200).json()
    assert (run["status"], run["text"], run["turns"]) == ("success", "done", turns), run
    executions = [result["execution"] for result in run["code_exec_results"]]
    assert [execution["stdout"] for execution in executions] == ["2\n"] * (turns - 1), run
    return sum(execution["duration_ms"] for execution in executions)
