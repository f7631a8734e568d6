"""A farm of its own for faults, whose leases are short, and ways to do it harm."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ndif_tasks import fleet
from tests import blocks, models
from tests.farm import Farm, serving, wait_until
from tests.sender import Sender, record


@pytest.fixture(scope="session")
def frail(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A running farm that serves the tiny GPT-2 and gives a silent replica two seconds."""
    running = Farm(tmp_path_factory.mktemp("frail"), {"NDIF_LEASE_S": "2"})
    models.hold("gpt2", "tiny", made, running.hf_home)
    with serving(running, models.GPT2) as served:
        yield served


@pytest.fixture(scope="session")
def sender(frail: Farm, remote_model: Callable[[str], Any]) -> Sender:
    """Sends a good trace of the tiny GPT-2."""
    model = remote_model(models.GPT2)
    return Sender(frail.url, model.to_model_key(), record(model, blocks.good))


@pytest.fixture(scope="session")
def slow(sender: Sender, remote_model: Callable[[str], Any]) -> Sender:
    """Sends a trace that takes some seconds, and says when it runs."""
    return sender.with_blob(record(remote_model(models.GPT2), blocks.slow))


def kill_service(farm: Farm, name: str) -> None:
    """SIGKILL a service's own process, and return once the supervisor has it ready again."""
    leash, restarts = farm.service_pid(name), farm.record["services"][name]["restarts"]
    child = int(Path(f"/proc/{leash}/task/{leash}/children").read_text().split()[0])
    os.kill(child, signal.SIGKILL)

    def again() -> bool:
        now = farm.record["services"][name]
        return bool(now["restarts"] > restarts and now["state"] == "ready")

    wait_until(again, 60, f"{name} to be started again")


def replica(farm: Farm, repo_id: str = models.GPT2) -> tuple[str, dict[str, Any]]:
    """The id and record of a model's one HOT replica, once there is one."""

    def hot() -> list[tuple[str, dict[str, Any]]]:
        alive = fleet.alive(farm.redis(), "replica").items()
        return [(id, r) for id, r in alive if r.get("repo_id") == repo_id and r["state"] == fleet.State.HOT]

    return wait_until(hot, 180, f"a replica of {repo_id}")[0]  # type: ignore[no-any-return]
