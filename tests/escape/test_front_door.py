"""Attacks as a stranger makes them: blocks sent through the front door. Each is stopped, told in the caller's own
words, harms nobody, and the next job's values are what they always are.

That each succeeds where there is no wall is shown in ``test_controls.py``, with the same functions.
"""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from tests import models
from tests.farm import wait_until

from .attacks import ATTACKS, BOMBS
from .conftest import PROMPT, Send
from .table import is_refusal, skip_unless_root
from .victims import Victims

pytestmark = pytest.mark.usefixtures("unharmed")

TOO_MUCH_PRINTED = "The block printed more than a job may (10000 lines or 1048576 bytes)."


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_stopped_and_told(name: str, send: Send, victim: Victims) -> None:
    skip_unless_root(name)
    assert is_refusal(send(name, victim.target))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_bursts_in_its_own_cell(name: str, send: Send, victim: Victims, zygote: psutil.Process) -> None:
    text = send(name, victim.target)
    if name in ("output_flood", "endless_line"):
        assert text == TOO_MUCH_PRINTED
    else:
        assert is_refusal(text)
    wait_until(lambda: len(zygote.children()) == 1, what="the runner's end, and the next one")


def test_weights_overwritten_in_place_are_the_blocks_own(remote_model: Any, farm_is_as_it_was: None) -> None:
    model = remote_model(models.GPT2)
    with model.trace(PROMPT, remote=True):
        import ctypes

        for weight in model._module.parameters():
            ctypes.memset(weight.data_ptr(), 0, weight.nbytes)
        zeros = (model.lm_head.output == 0).all().save()
    assert bool(zeros)
