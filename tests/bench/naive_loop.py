"""A plain loop of 50 one-trace calls against one session of the same 50, on a made 124M-parameter GPT-2.

Both save the most likely next token of each prompt. From both the client's floor is subtracted: the same calls, with
answers of the same size, against the farm that does nothing. What is left is what the farm takes for the same work cut
in fifty, and in one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

from .bench import BIG, Bench, seconds
from .rows import Row, percentile

TRACES = 50
ROUNDS = 3
TARGET_RATIO = 1.6
PROMPTS = [f"The farm answers question {n} of" for n in range(TRACES)]


def one(model: Any, prompt: str) -> int:
    """One call of the loop."""
    with model.trace(prompt, remote=True):
        token = model.lm_head.output[0, -1].argmax(-1).save()
    return int(token)


def loop(model: Any) -> list[int]:
    """What people write."""
    return [one(model, prompt) for prompt in PROMPTS]


def session(nnsight: Any, model: Any) -> list[int]:
    """What they are told to write."""
    with model.session(remote=True):
        tokens = nnsight.save([])
        for prompt in PROMPTS:
            with model.trace(prompt):
                tokens.append(model.lm_head.output[0, -1].argmax(-1))
    return [int(token) for token in tokens]


def run(bench: Bench) -> Iterator[Row]:
    """Measure."""
    nnsight, there = bench.client, bench.remote(BIG)
    found: dict[str, list[int]] = {}
    calls: dict[str, Callable[[], object]] = {
        "loop": lambda: found.update(loop=loop(there)),
        "session": lambda: found.update(session=session(nnsight, there)),
    }
    answers = {"loop": bench.record(lambda: one(there, PROMPTS[0])), "session": bench.record(calls["session"])}
    times: dict[str, list[float]] = {name: [] for name in ("loop", "session", "loop_floor", "session_floor")}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            gc.collect()
            bench.null.answer_with(answers[name].frame)
            times[f"{name}_floor"].append(bench.on_null(call))
            times[name].append(seconds(call))
        assert found["loop"] == found["session"], "the loop and the session do not agree"
    middle = {name: percentile(taken, 50) for name, taken in times.items()}
    ratio = (middle["loop"] - middle["loop_floor"]) / (middle["session"] - middle["session_floor"])
    yield Row("naive_loop", ratio, "times", at_most=TARGET_RATIO)
    for name, took_s in middle.items():
        yield Row(f"naive_loop_{name}", took_s, "s")
