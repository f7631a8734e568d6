"""The corpus, played against the farm and against every mutant of it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import coverage
import pytest

from ndif_tasks.replica import output
from ndif_tasks.sandbox import protocol

from . import hostile
from .case import Case, as_line, load
from .model import expected
from .mutants import FARM, MUTANTS, Mutant
from .player import play

CORPUS = load()
#: The rest of these files is what a runner, a zygote and a replica say.
HEARING = (
    "receive_answer",
    "receive_bytes",
    "receive_packet",
    "_receive",
    "_receive_exactly",
    "_receive_text",
    "Output.",
)
should = functools.cache(expected)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CORPUS])
def test_the_host_does_what_the_model_says(case: Case) -> None:
    assert play(case, FARM) == should(case)


@pytest.mark.parametrize("seeds", [range(begin, begin + 100) for begin in range(0, 400, 100)], ids=str)
def test_the_host_does_what_the_model_says_of_cases_from_seeds(seeds: range) -> None:
    for seed in seeds:
        case = hostile.make(seed)
        assert play(case, FARM) == expected(case), as_line(case)


@pytest.mark.parametrize("mutant", [pytest.param(mutant, id=mutant.shows) for mutant in MUTANTS])
def test_the_corpus_finds_the_mutant(mutant: Mutant) -> None:
    host = mutant.host()
    assert any(play(case, host) != should(case) for case in CORPUS if mutant.concerns(case))


@pytest.mark.parametrize("old", ["a text that is gone", "return"])
def test_a_mutant_of_a_text_that_is_not_there_once_is_refused(old: str) -> None:
    with pytest.raises(ValueError, match=f"has '{old}'"):
        Mutant("nothing", protocol, old, "").host()


def test_the_corpus_takes_every_branch_of_the_host_side(tmp_path: Path) -> None:
    sources = [str(protocol.__file__), str(output.__file__)]
    measure = coverage.Coverage(branch=True, data_file=None, config_file=False, include=sources)
    with measure.collect():
        for case in CORPUS:
            play(case, FARM)
    measure.json_report(outfile=str(tmp_path / "covered"))
    files = json.loads((tmp_path / "covered").read_text())["files"].values()
    hearing = {name: found for file in files for name, found in file["functions"].items() if name.startswith(HEARING)}
    assert hearing.keys() >= {"receive_answer", "receive_bytes", "receive_packet", "Output.lines", "Output.drain"}
    assert {name: missing for name, found in hearing.items() if (missing := _missing(found))} == {}


def _missing(found: dict[str, list[object]]) -> list[object]:
    return found["missing_lines"] + found["missing_branches"]
