"""What the jail costs: the same jobs through one replica with walls and one without, in turns.

Both serve the tiny GPT-2, under two names. ``jail_forward`` compares a forward pass in a runner that has waited a while
with one in this process, warmed, on the made 124M-parameter GPT-2; ``jail_forward_real`` does on a real one, where that
is installed. ``jail_kill_to_freed`` is the time from a client's DELETE to the end of a process that never leaves a loop
in native code.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from ndif_tasks import fleet
from tests import blocks, models, real_model
from tests.farm import beneath, wait_until
from tests.sender import Sender as PlainSender
from tests.sender import record

from .bench import BIG, Bench, seconds
from .latency import trace
from .rows import Row, percentile
from .sender import Recorded, Sender
from .throughput import drive

TASK = "text-generation"
UNJAILED = "ndif-tests/unjailed-gpt2"
JOBS, TURNS = 60, 4
ROUNDS, IDLE_S = 30, 0.4
FORWARDS = 15


def run(bench: Bench) -> Iterator[Row]:
    """Measure."""
    with _unjailed(bench):
        there = {"jailed": bench.remote(models.GPT2), "unjailed": bench.client.TransformersModel(UNJAILED, task=TASK)}
        requests = {name: bench.record(lambda model=model: trace(model, remote=True)) for name, model in there.items()}
        yield from _throughput(bench.farm.url, requests)
        yield from _latency(bench.farm.url, requests)
    yield from _forward(bench, BIG, "jail_forward")
    if real_model.installed():
        yield from _forward(bench, real_model.REPO_ID, "jail_forward_real")
    else:
        print(f"(no row of a real model: {real_model.INSTALL} gets one, of 253 MB)")
    yield Row("jail_kill_to_freed", _kill_to_freed(bench), "s", at_most=1)


@contextmanager
def _unjailed(bench: Bench) -> Iterator[None]:
    farm = bench.farm
    models.hold("gpt2", "tiny", bench.made, farm.hf_home, UNJAILED)
    argv = [sys.executable, "-m", "celery", "-A", "tests.bench.unjailed", "worker", "-Q", UNJAILED]
    with open(farm.home / "unjailed.log", "wb") as log:
        worker = subprocess.Popen(argv, env=farm.environment, cwd=models.ROOT, stdout=log, stderr=log)

    def serves() -> bool:
        found = fleet.alive(farm.redis(), "replica").values()
        return any(one.get("repo_id") == UNJAILED and one["state"] == fleet.State.HOT for one in found)

    try:
        wait_until(serves, 60, "the worker without a jail to serve")
        yield
    finally:
        worker.terminate()
        worker.wait(30)


def _throughput(url: str, requests: dict[str, Recorded]) -> Iterator[Row]:
    rates: dict[str, list[float]] = {name: [] for name in requests}
    for _ in range(TURNS):
        for name, request in requests.items():
            rates[name].append(JOBS / seconds(lambda request=request: drive(url, request, JOBS, 4)))
    middle = {name: percentile(found[1:], 50) for name, found in rates.items()}  # the first turn warms up
    yield Row("jail_throughput", middle["jailed"] / middle["unjailed"], "times", at_least=0.8)
    for name, rate in middle.items():
        yield Row(f"jail_throughput_{name}", rate, "jobs/s")


def _latency(url: str, requests: dict[str, Recorded]) -> Iterator[Row]:
    times: dict[str, list[float]] = {name: [] for name in requests}
    with ExitStack() as stack:
        senders = {name: stack.enter_context(Sender(url)) for name in requests}
        for _ in range(ROUNDS):
            for name, request in requests.items():
                time.sleep(IDLE_S)
                times[name].append(seconds(lambda: senders[name].send(request)))  # noqa: B023
    middle = {name: percentile(found, 50) * 1000 for name, found in times.items()}
    yield Row("jail_latency", middle["jailed"] - middle["unjailed"], "ms", at_most=10)
    for name, value in middle.items():
        yield Row(f"jail_latency_{name}_p50", value, "ms")


def _forward(bench: Bench, repo_id: str, name: str) -> Iterator[Row]:
    there, here = bench.remote(repo_id), bench.local(repo_id)

    def forward_s(model: Any, **how: Any) -> float:
        import time as clock

        with model.trace("The farm answers this question", **how):
            began = clock.perf_counter()
            model.lm_head.output[0, -1, 0].item()
            took = (clock.perf_counter() - began).save()  # type: ignore[attr-defined]
        return float(took)

    forks, ordinary = [], []
    for _ in range(FORWARDS):
        time.sleep(IDLE_S)
        ordinary.append(forward_s(here))
        time.sleep(2 * IDLE_S)
        forks.append(forward_s(there, remote=True))
    fork, own = percentile(forks, 50), percentile(ordinary[1:], 50)
    yield Row(name, fork / own, "times", at_most=1.15)
    yield Row(f"{name}_in_fork", fork * 1000, "ms")
    yield Row(f"{name}_ordinary", own * 1000, "ms")


def _kill_to_freed(bench: Bench) -> float:
    model = bench.remote(models.GPT2)
    sender = PlainSender(bench.farm.url, model.to_model_key(), record(model, blocks.endless))
    waiting = _runners(bench)  # one of them gets the job, and no other ends meanwhile
    job = sender.submit()
    sender.wait_printed(job, "running")
    assert all(one.is_running() for one in waiting)
    began = time.perf_counter()
    httpx.delete(f"{bench.farm.url}/jobs/{job}", timeout=30).raise_for_status()
    wait_until(lambda: not all(Path(f"/proc/{one.pid}").exists() for one in waiting), 30, "the runner to end")
    return time.perf_counter() - began


def _runners(bench: Bench) -> list[psutil.Process]:
    top = psutil.Process(bench.farm.service_pid("agent"))
    return [one for name, one in beneath(top) if name == "ndif-runner"]
