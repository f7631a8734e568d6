"""From ``ndif start`` to a ready farm, and from ``ndif stop`` to the end of it, both as a person waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.farm import Farm

from .bench import Bench
from .rows import Row

ROUNDS = 3
TARGET_S = 15


def run(bench: Bench) -> Iterator[Row]:
    """Measure, with empty sessions."""
    rounds = [_round(Farm(bench.folder / f"start-{number}")) for number in range(ROUNDS)]
    yield Row("start_to_ready_max", max(start for start, _ in rounds), "s", at_most=TARGET_S)
    yield Row("stop_max", max(stop for _, stop in rounds), "s")


def _round(farm: Farm) -> tuple[float, float]:
    farm.hf_home.mkdir(parents=True)
    began = time.perf_counter()
    farm.start()
    started = time.perf_counter()
    farm.stop()
    return started - began, time.perf_counter() - started
