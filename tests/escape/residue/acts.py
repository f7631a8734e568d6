"""How an act of a hostile block is noted: beside the one fact of ``facts.py`` that it changes in its own job.

An act is given the model. It is sent with a block, by value, so its imports are inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Act = Callable[[Any], object]
Acts = dict[str, tuple[str, Act]]


def changes(fact: str, acts: Acts) -> Callable[[Act], Act]:
    """Note an act and the fact that it changes."""

    def note(act: Act) -> Act:
        acts[act.__name__] = fact, act
        return act

    return note
