"""A stranger at the front door, and what must be as it was after each attack."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import models
from tests.farm import Farm, beneath, descendants_of_session
from tests.sender import Sender, record

from .attacks import ALL
from .victims import Victims, victims

PROMPT = "The farm answers"
Send = Callable[[str, dict[str, Any]], str]
Record = Callable[[str, dict[str, Any]], Sender]


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victims]:
    """Fresh victims."""
    with victims(tmp_path) as made:
        yield made


@pytest.fixture
def unharmed(victim: Victims) -> Iterator[None]:
    """After the test the victims are as they were made."""
    yield
    assert victim.harm() == set()


@pytest.fixture(scope="session")
def zygote(farm: Farm) -> psutil.Process:
    """The process that every runner of the GPT-2 is forked from; it lives as long as its replica."""
    replica = farm.replicas(models.GPT2)[0]["replica_id"]
    processes = descendants_of_session(farm.session_dir.parent)
    worker = next(pid for pid, line in processes if f"-n {replica}@" in line and "leash.py" not in line)
    return next(one for name, one in beneath(psutil.Process(worker)) if name == "ndif-zygote")


@pytest.fixture(scope="session")
def shipped(client: Any) -> dict[str, Any]:
    """The attacks, sent with every block that names them."""
    for name in [name for name in sys.modules if name.startswith(f"{__package__}.attacks")]:
        client.register(name)
    return ALL


@pytest.fixture
def farm_is_as_it_was(
    remote_model: Callable[[str], Any], local_model: Callable[[str], Any], zygote: psutil.Process
) -> Iterator[None]:
    """After the test the same replica serves the next job, with the values of a local run."""
    import torch

    remote, local = remote_model(models.GPT2), local_model(models.GPT2)
    yield
    with remote.trace(PROMPT, remote=True):
        there = remote.lm_head.output.save()
    with local.trace(PROMPT):
        here = local.lm_head.output.save()
    assert torch.equal(here, there)
    assert zygote.is_running()


@pytest.fixture
def send(remote_model: Callable[[str], Any], shipped: dict[str, Any], farm_is_as_it_was: None) -> Send:
    """Send an attack and give what its caller is told; nothing when it did what it wanted."""
    import nnsight
    from nnsight.intervention.backends.remote import RemoteError

    def attack_with(name: str, target: dict[str, Any]) -> str:
        model, attack = remote_model(models.GPT2), shipped[name]
        try:
            with model.trace(PROMPT, remote=True):
                attack(target)
                done = nnsight.save(True)  # noqa: F841
        except RemoteError as told:
            assert "/ndif_" not in str(told), told
            return str(told)
        return ""

    return attack_with


@pytest.fixture
def recorded(
    farm: Farm, remote_model: Callable[[str], Any], shipped: dict[str, Any], farm_is_as_it_was: None
) -> Record:
    """A sender of an attack, for tests that must see every answer themselves."""
    import nnsight

    def sender(name: str, target: dict[str, Any]) -> Sender:
        model, attack = remote_model(models.GPT2), shipped[name]

        def block(model: Any, backend: Any) -> None:
            with model.trace(PROMPT, backend=backend):
                attack(target)
                done = nnsight.save(True)  # noqa: F841

        return Sender(farm.url, model.to_model_key(), record(model, block))

    return sender
