"""The thin line: one trace through the whole farm, equal to the same trace here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import models


@pytest.mark.parametrize("repo_id", [models.GPT2, models.LLAMA])
def test_a_hidden_state_and_logits_come_back_bitwise(
    repo_id: str, remote_model: Callable[[str], Any], local_model: Callable[[str], Any]
) -> None:
    def run(model: Any, **how: Any) -> list[torch.Tensor]:
        layers = model.transformer.h if repo_id == models.GPT2 else model.model.layers
        with model.trace("The farm answers", **how):
            hidden = layers[0].output.save()
            logits = model.lm_head.output.save()
        return [hidden, logits]

    for here, there in zip(run(local_model(repo_id)), run(remote_model(repo_id), remote=True), strict=True):
        assert torch.equal(here, there)
