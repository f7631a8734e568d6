"""Blocks that end or flood their process, or save what cannot travel: one sentence, and the farm goes on."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from .support import failure, frames

pytestmark = pytest.mark.usefixtures("next_job_works")

PROMPT = "The farm answers"


def test_a_block_makes_no_process(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        import os

        with model.trace(PROMPT, **how):
            os.fork().save()

    text = failure(run, gpt2)
    assert len(frames(text)) == 1 and "Operation not permitted" in text


@pytest.mark.parametrize("kind", ["exit", "sys.exit", "SystemExit"])
def test_exit_is_answered_with_what_to_call_instead(gpt2: Any, kind: str) -> None:
    def run(model: Any, **how: Any) -> None:
        import sys

        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            if kind == "exit":
                exit()  # as a caller at a prompt would
            elif kind == "sys.exit":
                sys.exit(3)
            raise SystemExit("over")

    assert failure(run, gpt2) == "The block called exit(). To end a trace early, call tracer.stop()."


def test_os_exit_is_told_with_its_status(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        import os

        with model.trace(PROMPT, **how):
            print("last words")
            os._exit(3)

    assert failure(run, gpt2) == "The block ended its process (exit status 3) before its values were sent."


def test_a_segfault_is_told_by_its_signal(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        import ctypes

        with model.trace(PROMPT, **how):
            ctypes.string_at(0)

    assert failure(run, gpt2) == "The block crashed its process (SIGSEGV)."


def test_a_process_that_aborts_is_told(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        import os

        with model.trace(PROMPT, **how):
            os.abort()

    assert failure(run, gpt2).startswith("The block crashed its process (SIG")


def test_a_block_that_kills_the_first_process_of_its_tree_kills_nobody(gpt2: Any) -> None:
    import os
    import signal

    with gpt2.trace(PROMPT, remote=True):
        os.kill(os.getpid(), signal.SIGKILL)
        done = bool(gpt2.lm_head.output.numel()).save()
    assert done is True


def test_an_endless_print_is_ended_with_the_limit(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            while True:
                print("again")

    assert failure(run, gpt2) == "The block printed more than a job may (10000 lines or 1048576 bytes)."


def test_an_endless_line_is_ended_with_the_limit(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            while True:
                print("again", end="")

    assert failure(run, gpt2) == "The block printed more than a job may (10000 lines or 1048576 bytes)."


def test_an_absurd_allocation_is_an_error_at_the_callers_line(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            torch.zeros(10**13).save()

    text = failure(run, gpt2)
    assert len(frames(text)) == 1 and "torch.zeros(10 ** 13)" in text and "alloc" in text


def test_python_objects_without_end_are_an_error_and_no_more(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            held = bytes(10**14)
            len(held).save()

    text = failure(run, gpt2)
    assert len(frames(text)) == 1 and "MemoryError" in text


def test_a_thread_left_running_does_not_hold_the_job(gpt2: Any) -> None:
    import threading
    import time

    with gpt2.trace(PROMPT, remote=True):
        threading.Thread(target=time.sleep, args=(600,)).start()
        done = bool(gpt2.lm_head.output.numel()).save()
    assert done is True


@pytest.mark.parametrize("kind", ["lock", "generator"])
def test_a_value_that_cannot_be_sent_is_named(gpt2: Any, kind: str) -> None:
    def run(model: Any, **how: Any) -> None:
        import threading

        with model.trace(PROMPT, **how):
            fine = model.lm_head.output.save()  # noqa: F841
            mine = (threading.Lock() if kind == "lock" else (i for i in range(3))).save()  # noqa: F841

    text = failure(run, gpt2)
    assert text.startswith("The saved value `mine` cannot be sent back: TypeError") and kind in text


@pytest.mark.parametrize("kind", ["envoy", "model", "in a list"])
def test_a_part_of_the_model_is_not_sent_back(gpt2: Any, kind: str) -> None:
    def run(model: Any, **how: Any) -> None:
        import nnsight

        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            part = {"envoy": model.transformer.h[0], "model": model, "in a list": [model.lm_head]}[kind]
            nnsight.save(part)

    text = failure(run, gpt2)
    assert re.match(r"The saved value `(part|model)` cannot be sent back: .*a part of the model", text)


def test_a_block_that_closes_its_own_output_still_tells_its_error(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        import os
        import sys

        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            sys.stdout.close()
            sys.stderr = None
            os.close(1)
            raise ValueError("after the damage")

    assert "after the damage" in failure(run, gpt2)
