"""Jobs a second through one replica, each in a process of its own, and what a job costs in CPU time by process.

A real client's request (the trace of :mod:`.latency`) is recorded once and sent again by thin senders, so that the
client's own work is not what is measured. A sender keeps one session and one connection, and sends its next job when
the last is COMPLETED. CPU time is read from ``/proc`` before and after, that of ended runners in the zygote's account
of its children; what is still running ahead at either end cancels out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psutil

from tests import models
from tests.farm import Farm

from .bench import Bench
from .latency import trace
from .rows import Row
from .sender import Recorded, Sender

JOBS = 120
IN_FLIGHT = (1, 4)
TARGET_PER_S = 10


def run(bench: Bench) -> Iterator[Row]:
    """Measure."""
    there = bench.remote(models.GPT2)
    recorded = bench.record(lambda: trace(there, remote=True))
    drive(bench.farm.url, recorded, 20, 4)
    for in_flight in IN_FLIGHT:
        before, began = cpu_s(bench.farm), time.perf_counter()
        drive(bench.farm.url, recorded, JOBS, in_flight)
        took_s = time.perf_counter() - began
        spent = cpu_s(bench.farm) - before
        most = max(IN_FLIGHT)
        suffix = "" if in_flight == most else f"_{in_flight}_in_flight"
        yield Row(f"throughput{suffix}", JOBS / took_s, "jobs/s", at_least=TARGET_PER_S if in_flight == most else None)
        if in_flight == most:
            yield Row("cpu_per_job", sum(spent.values()) / JOBS * 1000, "ms")
            for name in sorted(spent, key=lambda name: -spent[name]):
                yield Row(f"cpu_per_job_{name}", spent[name] / JOBS * 1000, "ms")


def cpu_s(farm: Farm) -> Counter[str]:
    """CPU seconds spent so far by each kind of process of a farm."""
    spent: Counter[str] = Counter()
    for service, told in farm.record["services"].items():
        for process in [top := psutil.Process(int(told["pid"])), *top.children(recursive=True)]:
            try:
                line, times, name = " ".join(process.cmdline()), process.cpu_times(), process.name()
            except psutil.NoSuchProcess:
                continue
            if "ndif_tasks.sandbox.zygote" in line:
                kind = "runners" if name == "ndif-runner" else "zygote"
                if name == "ndif-zygote":  # the doors in front of it have no children that count
                    spent["runners"] += times.children_user + times.children_system
            else:
                kind = "replica" if service == "agent" and "node." not in line else service
            spent[kind] += times.user + times.system
    return spent


def drive(url: str, recorded: Recorded, jobs: int, in_flight: int) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(in_flight) as pool:
        senders = [stack.enter_context(Sender(url)) for _ in range(in_flight)]
        shares = [jobs // in_flight + (n < jobs % in_flight) for n in range(in_flight)]
        list(pool.map(lambda sender, share: [sender.send(recorded) for _ in range(share)], senders, shares))
