"""What a block changes outside itself changes on the farm only: the caller is told, and only then."""

from __future__ import annotations

from typing import Any

import torch

from .support import recorder

PROMPT = "The farm answers"


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


def test_a_hint_that_cannot_be_printed_fails_nothing(gpt2: Any) -> None:
    import sys

    backend = recorder(gpt2)
    collected: list[Any] = []
    with gpt2.trace(PROMPT, backend=backend):
        collected.append(1)
        logits = gpt2.lm_head.output.save()
        sys.stdout.close()
    assert logits.shape[0] == 1
