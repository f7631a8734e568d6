"""Blocks that tests record or run; each opens a trace of its own with the arguments given."""

from __future__ import annotations

from typing import Any


def good(model: Any, backend: Any) -> None:
    """Saves the logits of a prompt."""
    with model.trace("The farm answers", backend=backend):
        logits = model.lm_head.output.save()  # noqa: F841


def noisy(model: Any, backend: Any) -> None:
    """Prints three lines."""
    with model.trace("The farm answers", backend=backend):
        for number in range(3):
            print("line", number)
        logits = model.lm_head.output.save()  # noqa: F841


def endless(model: Any, backend: Any) -> None:
    """Says that it runs, and never leaves a loop in native code, where no signal handler runs."""
    with model.trace("The farm answers", backend=backend):
        import itertools

        print("running")
        sum(itertools.repeat(0))


def slow(model: Any, backend: Any) -> None:
    """Says that it runs, and works for some seconds."""
    with model.trace("The farm answers", backend=backend):
        import time

        print("running")
        until = time.monotonic() + 4
        while time.monotonic() < until:
            time.sleep(0.05)
        logits = model.lm_head.output.save()  # noqa: F841
