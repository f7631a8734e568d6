"""The command: measures by name, all unless named; a table; JSON where ``BENCH_JSON`` says; 1 if a target is missed."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from . import big_result, fork_to_ready, jail, latency, naive_loop, start, throughput
from .bench import Bench
from .rows import HEADING, Row, write_json

MEASURES = {
    "start": start.run,
    "fork_to_ready": fork_to_ready.run,
    "latency": latency.run,
    "throughput": throughput.run,
    "naive_loop": naive_loop.run,
    "jail": jail.run,
    "big_result": big_result.run,
}


def main() -> int:
    """Run the measures that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"any of: {', '.join(MEASURES)}")
    names = parser.parse_args().measures or list(MEASURES)
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        parser.error(f"no such measure: {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    # Ended from outside, by a time limit say, it still stops its farm.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="ndif-bench-") as folder:
        rows = _measure(names, Path(folder))
    if os.environ.get("BENCH_JSON"):
        write_json(rows, Path(os.environ["BENCH_JSON"]))
    return 1 if any(row.ok is False for row in rows) else 0


def _measure(names: list[str], folder: Path) -> list[Row]:
    rows: list[Row] = []
    bench = Bench(folder)
    print(HEADING, flush=True)
    try:
        for name in names:
            began = time.monotonic()
            for row in MEASURES[name](bench):
                rows.append(row)
                print(row.line(), flush=True)
            print(f"({name}: {time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
    finally:
        bench.close()
    return rows


if __name__ == "__main__":
    sys.exit(main())
