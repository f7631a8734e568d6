"""What an idle runner plays for itself, and that no job can tell."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests import models


@pytest.fixture
def model(client: Any, made: Path) -> Any:
    """A tiny GPT-2 in this process."""
    found = client.TransformersModel(
        str(models.made_model("gpt2", "tiny", made)), task="text-generation", dispatch=True
    )
    found._module.eval()
    return found


def logits(model: Any) -> Any:
    with model.trace("The farm answers"):
        found = model.lm_head.output.save()
    return found


def test_a_rehearsal_ends_before_the_next_module_and_changes_no_value(model: Any) -> None:
    import torch

    from ndif_tasks.sandbox.rehearsal import Rehearsal

    expected = logits(model)
    rehearsal = Rehearsal(model)
    rehearsal.play()
    n_modules = 0
    for wanted in (0, 1, 5, 20, 10_000):
        looks = itertools.count(1)
        rehearsal.forward(lambda looks=looks, wanted=wanted: next(looks) > wanted)  # type: ignore[misc]
        n_modules = next(looks) - 1
        assert n_modules == wanted + 1 or wanted == 10_000
        assert torch.equal(logits(model), expected)
    assert 20 < n_modules < 10_000


def test_a_model_that_takes_no_text_alone_is_served_unrehearsed(capfd: pytest.CaptureFixture[str]) -> None:
    from ndif_tasks.sandbox.rehearsal import Rehearsal

    class Picky:
        tokenizer = object()

        def trace(self, *_: Any, **__: Any) -> Any:
            raise ValueError("You have to specify an image")

    rehearsal = Rehearsal(Picky())
    rehearsal.play()
    rehearsal.forward(lambda: False)
    assert "no job is rehearsed: ValueError: You have to specify an image" in capfd.readouterr().err
