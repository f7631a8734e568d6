"""The processes of a running farm, looked at from outside: who has torch in memory, and who holds which secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import models
from tests.farm import Farm, descendants_of_session, wait_until

FOR_THE_WEB_TIER_ONLY = ("NDIF_OBJECT_STORE_ACCESS_KEY", "NDIF_OBJECT_STORE_SECRET_KEY", "NDIF_SIGNING_KEY")
NOT_FOR_REPLICAS = (*FOR_THE_WEB_TIER_ONLY, "NDIF_DATABASE_URL", "NDIF_API_KEY", "HF_TOKEN")


class Seen(NamedTuple):
    """One process: its name, its arguments, its first environment and what it maps."""

    pid: int
    name: str
    arguments: str
    environ: dict[str, str]
    maps: str

    @property
    def is_zygote_or_runner(self) -> bool:
        return self.name in ("ndif-zygote", "ndif-runner")

    @property
    def is_replica(self) -> bool:
        return "NDIF_REPLICA_ID" in self.environ and "celery" in self.arguments


def look(pid: int) -> Seen | None:
    place = Path(f"/proc/{pid}")
    try:
        pairs = [line.split("=", 1) for line in (place / "environ").read_text().split("\0") if "=" in line]
        arguments = (place / "cmdline").read_text().replace("\0", " ")
        name = (place / "comm").read_text().strip()
        return Seen(pid, name, arguments, {name: value for name, value in pairs}, (place / "maps").read_text())
    except OSError:
        return None


@pytest.fixture
def processes(farm: Farm) -> list[Seen]:
    """Every process of the farm, two replicas, their zygotes and their waiting runners among them."""

    return settled(farm)


def settled(farm: Farm) -> list[Seen]:
    def seen() -> list[Seen]:
        # The farm's folder is in the environment of each: as its session, or as the home of its models.
        found = [look(pid) for pid, _ in descendants_of_session(farm.session_dir.parent)]
        there = [one for one in found if one is not None]
        return there if sum(one.is_zygote_or_runner for one in there) == 4 else []

    return list(wait_until(seen, what="two zygotes with one runner each"))


@pytest.fixture
def secrets(farm: Farm) -> dict[str, str]:
    """What no argument and no log may hold."""
    found = {name: farm.variables[name] for name in FOR_THE_WEB_TIER_ONLY}
    password = json.loads((farm.session_dir / "secrets.json").read_text())["broker_password"]
    return {**found, "the broker's password": password}


def test_only_zygotes_and_runners_have_torch_in_memory(processes: list[Seen]) -> None:
    assert [one.arguments for one in processes if "libtorch" in one.maps and not one.is_zygote_or_runner] == []
    assert all("libtorch" in one.maps for one in processes if one.is_zygote_or_runner)


def test_a_job_leaves_no_runner_behind(farm: Farm, remote_model: Callable[[str], Any]) -> None:
    before = {one.pid for one in settled(farm) if one.is_zygote_or_runner}
    model = remote_model(models.GPT2)
    for _ in range(3):
        with model.trace("The farm answers", remote=True):
            model.lm_head.output.save()
    after = {one.pid for one in settled(farm) if one.is_zygote_or_runner}
    assert len(before & after) == 3, "both zygotes, and the runner of the model that had no job"


def test_replicas_hold_no_key_of_the_store_and_no_database(processes: list[Seen], secrets: dict[str, str]) -> None:
    replicas = [one for one in processes if one.is_replica]
    assert len([one for one in replicas if "leash.py" not in one.arguments]) == 2
    kept_from_them = [value for name, value in secrets.items() if name in NOT_FOR_REPLICAS]
    for one in replicas:
        assert not set(NOT_FOR_REPLICAS) & set(one.environ)
        assert not [value for value in one.environ.values() if value in kept_from_them]


def test_zygotes_know_no_setting_and_no_secret(processes: list[Seen], secrets: dict[str, str]) -> None:
    for one in (one for one in processes if one.is_zygote_or_runner):
        assert [name for name in one.environ if name.startswith(("NDIF_", "AWS_")) or "TOKEN" in name] == [
            name for name in ("TOKENIZERS_PARALLELISM",) if name in one.environ
        ]
        text = json.dumps(one.environ)
        assert [name for name, value in secrets.items() if value in text] == []


def test_no_argument_holds_a_secret(processes: list[Seen], secrets: dict[str, str]) -> None:
    assert [one.arguments for one in processes if any(value in one.arguments for value in secrets.values())] == []


def test_no_log_holds_a_secret(farm: Farm, secrets: dict[str, str]) -> None:
    logs = list((farm.session_dir / "logs").iterdir())
    assert len(logs) >= 9
    told = [(log.name, name) for log in logs for name, value in secrets.items() if value in log.read_text()]
    assert told == []
