"""Choices made from a seed, written down, so that a case found by many can be made again by few.

In place of hypothesis: a seed gives the same case on every version of everything, and ten times as many a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from .case import Case

T = TypeVar("T")
#: How many of the options of one choice are tried, at least.
MOST_TRIED = 8


class Draw:
    """Picks as ``given``, then by chance, or where there is none always the first: options begin with the plainest."""

    def __init__(self, given: Sequence[int] = (), chance: Random | None = None) -> None:
        self._given = given
        self._chance = chance
        self.made: list[int] = []

    def pick(self, options: Sequence[T]) -> T:
        """One of these."""
        turn = len(self.made)
        if turn < len(self._given):
            index = min(self._given[turn], len(options) - 1)
        else:
            index = self._chance.randrange(len(options)) if self._chance else 0
        self.made.append(index)
        return options[index]


def smallest(made: list[int], make: Callable[[Draw], Case], wanted: Callable[[Case], bool]) -> Case:
    """A case that is wanted as this one is, of fewer bytes and of fewer and plainer choices where there is one."""

    def cost(draw: Draw) -> tuple[int, int, list[int]]:
        return sum(map(len, make(draw).written())), len(draw.made), draw.made

    def tried(choices: list[int]) -> bool:
        nonlocal made
        draw = Draw(choices)
        better = cost(draw) < cost(Draw(made)) and wanted(make(Draw(choices)))
        if better:
            made = draw.made
        return better

    size = len(made)
    while size:
        at = 0
        while at < len(made):
            if not tried(made[:at] + made[at + size :]):
                at += size
        size //= 2
    at = 0
    while at < len(made):
        for other in range(max(MOST_TRIED, made[at])):
            if at < len(made):
                tried([*made[:at], other, *made[at + 1 :]])
        at += 1
    return make(Draw(made))
