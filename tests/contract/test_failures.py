"""Blocks that raise: the caller learns why, from its own lines, and the farm goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from .support import failure, frames

pytestmark = pytest.mark.usefixtures("next_job_works")

PROMPT = "The farm answers"


def divide(by: int) -> float:
    return 1 / by  # in the helper


class LyingError(Exception):
    """An exception that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


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


def test_a_name_that_nobody_defined_is_told_by_its_line(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):
            hidden = model.lm_head.output
            unknown_name  # noqa: B018, F821
            hidden.save()

    text = failure(run, gpt2)
    assert own(text) and "NameError: name 'unknown_name' is not defined" in text


def test_recursion_without_end_is_an_error_of_bounded_length(gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> None:
        with model.trace(PROMPT, **how):

            def down(n: int) -> int:
                return down(n + 1)

            down(0)

    text = failure(run, gpt2)
    assert "RecursionError" in text and len(text) < 64 * 1024
