"""Each part of a farm is harmed at random moments while jobs come: every job that was accepted ends once, and right.

``make test-faults`` takes 20 moments of each fault (``NDIF_FAULT_MOMENTS``); otherwise some faults have one, those that
``test_restarts.py`` has not. The seed is printed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ndif_tasks import fleet
from tests import models
from tests.farm import Farm, beneath, serving, wait_until
from tests.faults.conftest import kill_service
from tests.faults.load import Kind, Load, patiently
from tests.sender import Sender, record

MOMENTS = int(os.environ.get("NDIF_FAULT_MOMENTS") or 1)
SEED = int(os.environ.get("NDIF_FAULT_SEED") or random.SystemRandom().randrange(2**31))
LEASE_S = 2.0
PROMPTS = ("The farm answers", "One", "What is asked of the farm is asked of")
Fault = Callable[[Farm, random.Random], None]


@pytest.fixture(scope="module")
def shaken(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm with two replicas of the tiny GPT-2, which gives a silent one two seconds."""
    running = Farm(tmp_path_factory.mktemp("shaken"), {"NDIF_LEASE_S": str(LEASE_S), "NDIF_MAX_ATTEMPTS": "6"})
    models.hold("gpt2", "tiny", made, running.hf_home)
    with serving(running, models.GPT2):
        running.ndif("deploy", models.GPT2, "--replicas", "2")
        yield running


@pytest.fixture(scope="module")
def kinds(shaken: Farm, remote_model: Callable[[str], Any], local_model: Callable[[str], Any]) -> list[Kind]:
    """Requests of different values and sizes, some of which take a while."""
    there, here = remote_model(models.GPT2), local_model(models.GPT2)

    def block(prompt: str, pause_s: float, times: int) -> Callable[[Any, Any], None]:
        def send(model: Any, backend: Any) -> None:
            with model.trace(prompt, backend=backend):
                import time

                time.sleep(pause_s)
                logits = model.lm_head.output.repeat(times, 1, 1).save()  # noqa: F841

        return send

    found = []
    for prompt, pause_s, times in zip(PROMPTS, (0.0, 0.4, 0.1), (1, 1, 64), strict=True):
        with here.trace(prompt):
            expected = here.lm_head.output.repeat(times, 1, 1).save()
        sender = Sender(shaken.url, there.to_model_key(), record(there, block(prompt, pause_s, times)))
        found.append(Kind(sender, expected))
    return found


def replicas(farm: Farm) -> list[psutil.Process]:
    """The workers of the hot replicas; one that was killed is told of for a while."""
    alive = fleet.alive(farm.redis(), "replica").values()
    pids = [one["worker_pid"] for one in alive if one["state"] == fleet.State.HOT]
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


def a_replica(farm: Farm, chance: random.Random) -> psutil.Process:
    return chance.choice(wait_until(lambda: replicas(farm), 60, "a replica"))  # type: ignore[no-any-return]


def within(farm: Farm, chance: random.Random, name: str) -> psutil.Process:
    """A process of this name within a replica."""
    top = a_replica(farm, chance)
    found = wait_until(lambda: [one for kind, one in beneath(top) if kind == name], 30, f"a {name}")
    return chance.choice(found)  # type: ignore[no-any-return]


def service(farm: Farm, name: str) -> psutil.Process:
    """A service's own process."""

    def child() -> psutil.Process | None:
        children = psutil.Process(farm.service_pid(name)).children()
        return children[0] if children else None

    return wait_until(child, 60, f"{name} to run")  # type: ignore[no-any-return]


def killing(name: str) -> Fault:
    """Kill a service; it is started again."""
    return lambda farm, chance: kill_service(farm, name)


def kill(process: psutil.Process) -> None:
    process.send_signal(signal.SIGKILL)


def stop_a_replica_for_longer_than_its_lease(farm: Farm, chance: random.Random) -> None:
    stopped = a_replica(farm, chance)
    stopped.suspend()
    time.sleep(3 * LEASE_S)  # the fault itself: it is silent for so long
    stopped.resume()


def stop_the_broker_for_half_a_minute(farm: Farm, chance: random.Random) -> None:
    stopped = service(farm, "broker")
    stopped.suspend()
    time.sleep(30)  # the fault itself
    stopped.resume()


FAULTS: dict[str, Fault] = {
    "runner": lambda farm, chance: kill(within(farm, chance, "ndif-runner")),
    "zygote": lambda farm, chance: kill(within(farm, chance, "ndif-zygote")),
    "replica": lambda farm, chance: kill(a_replica(farm, chance)),
    "agent": killing("agent"),
    "control": killing("control"),
    "beat": killing("beat"),
    "web worker": lambda farm, chance: kill(chance.choice(service(farm, "api").children())),
    "web tier": killing("api"),
    "broker": killing("broker"),
    "object store": killing("object-store"),
    "silent replica": stop_a_replica_for_longer_than_its_lease,
}
LONG = {"broker away": stop_the_broker_for_half_a_minute}
SHORT = ("runner", "web worker", "object store", "silent replica")


@pytest.mark.parametrize("name", [*FAULTS, *LONG] if MOMENTS > 1 else SHORT)
def test_no_accepted_job_is_lost(name: str, shaken: Farm, kinds: list[Kind]) -> None:
    seed = SEED ^ hash_of(name)
    chance = random.Random(seed)
    load = Load(shaken, kinds, seed, pause_s=0.15)
    try:
        for _ in range(1 if name in LONG else MOMENTS):
            time.sleep(chance.uniform(0.2, 1.5))  # the moment is chance's
            (FAULTS | LONG)[name](shaken, chance)
            wait_until(lambda: patiently(lambda: healthy(shaken)), 90, "the farm to be whole again")
    finally:
        load.stop()
    print(f"\n{name} (NDIF_FAULT_SEED={SEED}): {load.outcome(may_die=name == 'runner')}")
    assert load.accepted


def test_a_farm_that_is_killed_whole_has_its_line_when_it_is_started_again(shaken: Farm, kinds: list[Kind]) -> None:
    load = Load(shaken, kinds, SEED, pause_s=0.01)
    wait_until(lambda: len(load.accepted) >= 100, 120, "a hundred jobs")
    supervisor = psutil.Process(int(shaken.record["pid"]))
    everything = [supervisor, *supervisor.children(recursive=True)]
    for process in everything:
        if process.is_running():
            kill(process)
    load.stop()
    gone, alive = psutil.wait_procs(everything, 30)
    assert gone and not alive
    shaken.start()
    print(f"\nwhole farm (NDIF_FAULT_SEED={SEED}): {load.outcome()}")


def healthy(farm: Farm) -> bool:
    """Whether every service runs and both replicas serve."""
    ready = all(one["state"] == "ready" for one in farm.record["services"].values())
    up = httpx.get(f"{farm.url}/ping", timeout=5).status_code == 200
    return ready and up and len(replicas(farm)) == 2


def hash_of(name: str) -> int:
    """The same in every process."""
    return sum(ord(letter) << number for number, letter in enumerate(name))
