"""A hunt: cases from seeds, one after the other, until one finds the farm wrong or a mutant that the corpus does not.

Prints each as the corpus keeps it, made small; exits with 1 where the farm is wrong.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from . import hostile
from .case import Case, as_line, load, save
from .draw import Draw, smallest
from .model import expected
from .mutants import FARM, MUTANTS
from .player import Host, play


def differs(case: Case, host: Host) -> bool:
    """Whether the model says something else than the host does."""
    return play(case, host) != expected(case)


def main() -> int:
    """Hunt as long as was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--add", action="store_true", help="add what is found to the corpus")
    args = parser.parse_args()
    corpus = load()
    sought = {"wrong": FARM}
    hosts = {mutant.shows: mutant.host() for mutant in MUTANTS}
    sought |= {name: host for name, host in hosts.items() if not any(differs(case, host) for case in corpus)}
    print(f"{len(sought) - 1} of {len(MUTANTS)} mutants are not found by the {len(corpus)} cases of the corpus")
    found: list[Case] = []
    seed, until = args.seed, time.monotonic() + args.seconds
    while "wrong" in sought and time.monotonic() < until:
        for case in _found(seed, sought):
            print(as_line(case), flush=True)
            if case.name == "wrong":
                print(f"model: {expected(case)}\nhost:  {play(case, FARM)}")
            found.append(case)
        seed += 1
    print(f"{seed - args.seed} cases from seeds, {len(found)} found; not found: {', '.join(sought)}")
    if args.add:
        save([*corpus, *found])
    return 0 if "wrong" in sought else 1


def _found(seed: int, sought: dict[str, Host]) -> Iterator[Case]:
    """What the case of a seed shows of those sought, made small; these are then sought no more."""
    draw = Draw(chance=Random(seed))
    case = hostile.case(draw)
    should = expected(case)
    for name, host in [(name, host) for name, host in sought.items() if play(case, host) != should]:
        if name in sought:
            small = smallest(draw.made, hostile.case, functools.partial(differs, host=host))
            for other in [other for other, host in sought.items() if differs(small, host)]:
                del sought[other]
            yield replace(small, name=name)


if __name__ == "__main__":
    sys.exit(main())
