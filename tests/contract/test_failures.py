"""Blocks that fail, in every way a block can: the caller learns why, from its own lines, and the farm goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .support import recorder

pytestmark = pytest.mark.usefixtures("next_job_works")

PROMPT = "The farm answers"


def divide(by: int) -> float:
    return 1 / by  # in the helper


class LyingError(Exception):
    """An exception that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def failure(run: Callable[..., Any], model: Any) -> str:
    """What the caller of a failing block is told."""
    from nnsight.intervention.backends.remote import RemoteError

    with pytest.raises(RemoteError) as caught:
        run(model, remote=True)
    return str(caught.value)


def frames(text: str) -> list[str]:
    """The files of a traceback's frames."""
    return re.findall(r'File "(.*?)", line', text)


def own(text: str) -> bool:
    """Whether a traceback has frames, and all are of this file."""
    return bool(frames(text)) and all(name.endswith(__file__) for name in frames(text))


def test_an_exception_shows_the_callers_line_and_no_other_frame(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            1 / 0  # noqa: B018

    text = failure(run, gpt2)
    assert own(text) and "    1 / 0" in text
    assert text.rstrip().endswith("ZeroDivisionError: division by zero")


def test_an_exception_in_a_helper_shows_both_of_the_callers_lines(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            divide(0)

    text = failure(run, gpt2)
    assert own(text) and "    divide(0)" in text and "return 1 / by" in text


def test_an_exception_shows_the_line_number_in_the_callers_file(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            raise ValueError("here")

    source = Path(__file__).read_text().splitlines()
    line = source.index('            raise ValueError("here")') + 1
    assert f'{__file__}", line {line}, in' in failure(run, gpt2)


def test_a_chained_exception_shows_cause_and_effect(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            try:
                divide(0)
            except ZeroDivisionError as error:
                raise KeyError("the effect") from error

    text = failure(run, gpt2)
    assert own(text) and text.index("ZeroDivisionError") < text.index("direct cause") < text.index("the effect")


def test_an_error_inside_torch_ends_at_the_callers_line(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            torch.nn.functional.cross_entropy(model.lm_head.output, torch.zeros(1))

    text = failure(run, gpt2)
    assert own(text) and "cross_entropy(" in text and "RuntimeError" in text and "forward pass" not in text


def test_an_edit_of_a_wrong_shape_names_the_part_of_the_model_that_failed(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            model.transformer.h[0].output = torch.zeros(1, 2, 3)
            model.lm_head.output.save()

    text = failure(run, gpt2)
    assert text.startswith("RuntimeError") and "forward pass, in transformer.h.1.ln_1)" in text and frames(text) == []


def test_an_edit_of_a_wrong_shape_in_a_session_shows_which_trace(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.session(**how):
            with model.trace("First"):
                model.lm_head.output.save()
            with model.trace("Second"):
                model.transformer.h[0].output = torch.zeros(1, 2, 3)
                model.lm_head.output.save()

    text = failure(run, gpt2)
    assert own(text) and "with model.trace('Second'):" in text and "First" not in text
    assert "forward pass, in transformer.h.1.ln_1)" in text


def test_a_second_trace_of_three_that_raises_is_told_by_its_line(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.session(**how):
            with model.trace(PROMPT):
                first = model.lm_head.output.save()  # noqa: F841
            with model.trace(PROMPT):
                model.lm_head.output.save()
                raise ValueError("the second trace")
            with model.trace(PROMPT):
                third = model.lm_head.output.save()  # noqa: F841

    text = failure(run, gpt2)
    assert own(text) and 'raise ValueError("the second trace")' in text.replace("'", '"')


def test_modules_asked_for_out_of_order_are_named(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            model.transformer.h[1].output.save()
            model.transformer.h[0].output.save()

    text = failure(run, gpt2)
    assert "OutOfOrderError" in text and "transformer.h.0.output" in text and own(text)


def test_an_exception_that_cannot_be_shown_is_named(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            raise LyingError()

    assert "LyingError" in failure(run, gpt2)


def test_an_exception_whose_text_is_no_unicode_is_shown_escaped(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            print("half \ud800")
            model.lm_head.output.save()
            raise ValueError("half \ud800")

    assert failure(run, gpt2).rstrip().endswith("ValueError: half \\ud800")


def test_a_very_long_exception_is_cut_and_keeps_its_end(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            raise ValueError("é" * 10_000_000 + "the end")

    text = failure(run, gpt2)
    assert len(text) < 64 * 1024 and text.rstrip().endswith("the end")


def test_a_group_of_exceptions_shows_each(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

    text = failure(run, gpt2)
    assert own(text) and "ValueError: one" in text and "KeyError: 'two'" in text


def test_an_interrupt_raised_by_the_block_is_its_own_error(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            model.lm_head.output.save()
            raise KeyboardInterrupt

    assert own(failure(run, gpt2)) and "KeyboardInterrupt" in failure(run, gpt2)


def test_a_forked_child_of_a_block_neither_answers_nor_lives_on(gpt2: Any) -> None:
    import os
    import time

    with gpt2.trace(PROMPT, remote=True):
        child = os.fork()
        if child == 0:
            time.sleep(600)
        who = child.save()
    assert who > 0


def test_a_name_that_nobody_defined_is_told_by_its_line(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            hidden = model.lm_head.output
            unknown_name  # noqa: B018, F821
            hidden.save()

    text = failure(run, gpt2)
    assert own(text) and "NameError: name 'unknown_name' is not defined" in text


def test_a_list_made_outside_and_changed_inside_gets_a_hint(gpt2: Any) -> None:
    backend = recorder(gpt2)
    collected: list[Any] = []
    with gpt2.trace(PROMPT, backend=backend):
        collected.append(gpt2.lm_head.output)
    assert collected == []
    assert len(backend.lines) == 1
    assert "`collected`" in backend.lines[0] and "collected = nnsight.save(collected)" in backend.lines[0]


def test_a_list_changed_in_a_trace_of_a_session_gets_a_hint(gpt2: Any) -> None:
    backend = recorder(gpt2)
    collected: list[Any] = []
    table: dict[str, Any] = {}
    with gpt2.session(backend=backend):
        for _ in range(2):
            with gpt2.trace(PROMPT):
                collected.append(gpt2.lm_head.output)
                table["last"] = gpt2.lm_head.output
    assert [line.split("`")[1] for line in sorted(backend.lines)] == ["collected", "table"]


def test_a_list_made_outside_and_saved_inside_comes_back_without_a_hint(gpt2: Any) -> None:
    import nnsight

    backend = recorder(gpt2)
    collected: list[Any] = []
    with gpt2.trace(PROMPT, backend=backend):
        collected.append(gpt2.lm_head.output)
        collected = nnsight.save(collected)
    assert len(collected) == 1 and backend.lines == []


def test_a_block_that_changes_nothing_outside_gets_no_hint(gpt2: Any) -> None:
    backend = recorder(gpt2)
    factors, vector = [1, 2], torch.ones(48)
    with gpt2.trace(PROMPT, backend=backend):
        gpt2.transformer.h[0].output += vector * factors[1]
        logits = gpt2.lm_head.output.save()  # noqa: F841
    assert backend.lines == []


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


def test_a_process_that_kills_itself_is_told(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        import os
        import signal

        with model.trace(PROMPT, **how):
            os.kill(os.getpid(), signal.SIGKILL)

    assert "killed" in failure(run, gpt2)


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
    assert own(text) and "torch.zeros(10 ** 13)" in text and "alloc" in text


def test_python_objects_without_end_are_an_error_and_no_more(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            held = bytes(10**14)
            len(held).save()

    text = failure(run, gpt2)
    assert own(text) and "MemoryError" in text


def test_recursion_without_end_is_an_error_of_bounded_length(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):

            def down(n: int) -> int:
                return down(n + 1)

            down(0)

    text = failure(run, gpt2)
    assert "RecursionError" in text and len(text) < 64 * 1024


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
