"""What the farm adds to one small trace, for somebody who waits.

Each round runs the same trace (tiny GPT-2; a hidden state and the logits saved) three times with the same stock client:
on the farm, on the null farm (what the client alone costs: building an HTTP client, connecting, packing, unpacking),
and here (what the trace itself costs). A round's latency is farm - null farm - here. Garbage is collected between
rounds, not in them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

from tests import models

from .bench import Bench, seconds
from .rows import Row, percentile

ROUNDS = 80
WARM_UP = 8
TARGET_MS = 40


def trace(model: Any, **how: Any) -> None:
    """The trace of this measure."""
    with model.trace("The farm answers", **how):
        model.transformer.h[0].output.save()
        model.lm_head.output.save()


def run(bench: Bench) -> Iterator[Row]:
    """Measure."""
    there, here = bench.remote(models.GPT2), bench.local(models.GPT2)

    def remotely() -> None:
        trace(there, remote=True)

    bench.record(remotely)
    gc.freeze()
    rounds = [_round(bench, remotely, here) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]
    beyond = [farm - null - local for farm, null, local in rounds]
    yield Row("latency_p50", percentile(beyond, 50) * 1000, "ms", at_most=TARGET_MS)
    yield Row("latency_p95", percentile(beyond, 95) * 1000, "ms")
    for name, times in zip(("farm", "null_farm", "local"), zip(*rounds, strict=True), strict=True):
        yield Row(f"latency_{name}_p50", percentile(times, 50) * 1000, "ms")


def _round(bench: Bench, remotely: Any, here: Any) -> tuple[float, float, float]:
    gc.collect()
    return seconds(remotely), bench.on_null(remotely), seconds(lambda: trace(here))
