"""Fixtures of the contract suite: run a block here and on the farm and compare; see that a farm survived."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
import torch

from tests import models

from .support import assert_equal

PROMPT = "The farm answers"


class Run(Protocol):
    """A traced block: called with a local model, or with a weightless one and ``remote=True``."""

    def __call__(self, model: Any, **how: Any) -> Any: ...


@pytest.fixture
def same(remote_model: Callable[[str], Any], local_model: Callable[[str], Any]) -> Callable[[Run, str], Any]:
    """Run a block here and on the farm, demand equal values, and give them."""

    def check(run: Run, repo_id: str) -> Any:
        here, there = run(local_model(repo_id)), run(remote_model(repo_id), remote=True)
        assert_equal(here, there)
        return there

    return check


@pytest.fixture
def gpt2(remote_model: Callable[[str], Any]) -> Any:
    """The client's weightless GPT-2."""
    return remote_model(models.GPT2)


@pytest.fixture
def local_gpt2(local_model: Callable[[str], Any]) -> Any:
    """The GPT-2 with its weights, in this process."""
    return local_model(models.GPT2)


@pytest.fixture
def clean_logits(local_gpt2: Any) -> torch.Tensor:
    """What an untouched GPT-2 says to the prompt."""
    return logits_of(local_gpt2)


@pytest.fixture
def next_job_works(gpt2: Any, clean_logits: torch.Tensor) -> Iterator[None]:
    """After the test, the farm serves a trace, with pristine values."""
    yield
    assert torch.equal(logits_of(gpt2, remote=True), clean_logits)


def logits_of(model: Any, **how: Any) -> Any:
    """The logits of the prompt."""
    with model.trace(PROMPT, **how):
        logits = model.lm_head.output.save()
    return logits
