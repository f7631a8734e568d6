"""Attacks on what a runner has for neighbours: the farm's secrets, processes and weights, and other people's jobs.

Each attack is first made without a wall, on the same target: there it succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ndif_models import snapshots
from tests import blocks, models
from tests.farm import Farm, descendants_of_session
from tests.sender import Sender, record

from .conftest import Send
from .table import is_refusal, skip_unless_root
from .victims import Victims

pytestmark = pytest.mark.usefixtures("unharmed")
Contained = Callable[[str], None]

TIMEOUT_S = 60
ELF = "\x7fELF"
#: The farm's processes, by what is in the command line of the leash that holds them, and of no other.
PROCESSES = {
    "broker": "valkey-server",
    "store": "weed -",
    "web tier": "gunicorn",
    "agent": "-Q node.",
    "control worker": "-Q control",
    "replica": f"-Q {models.GPT2} ",
    "another replica": f"-Q {models.LLAMA} ",
}


@pytest.fixture
def contained(send: Send, victim: Victims) -> Contained:
    """Demand that an attack on the present target succeeds without a wall, and not in a runner."""

    def check(name: str) -> None:
        skip_unless_root(name)
        text, complaint = victim.cell(name).communicate(timeout=TIMEOUT_S)
        assert text == "succeeded\n", (name, text, complaint)
        told = send(name, victim.target)
        assert is_refusal(told), (name, told)

    return check


def weights_of(farm: Farm, repo_id: str) -> Path:
    """The file that holds a model's weights."""
    found = snapshots.find(farm.hf_home, repo_id)
    assert found is not None
    return (snapshots.folder(farm.hf_home, found) / "model.safetensors").resolve(strict=True)


def farm_secrets(farm: Farm) -> list[str]:
    """Every password and key of the session."""
    names = ("NDIF_BROKER_URL", "NDIF_SIGNING_KEY", "NDIF_OBJECT_STORE_ACCESS_KEY", "NDIF_OBJECT_STORE_SECRET_KEY")
    broker, *others = (farm.variables[name] for name in names)
    return [broker.rpartition("@")[0].rpartition(":")[2], *others]


def process_of(farm: Farm, kind: str, zygote: psutil.Process) -> int:
    """One of the farm's processes."""
    if kind in ("supervisor", "zygote"):
        return zygote.pid if kind == "zygote" else int(farm.record["pid"])
    processes = descendants_of_session(farm.session_dir.parent)
    leash = next(pid for pid, line in processes if PROCESSES[kind] in line and "leash.py" in line)
    return int(psutil.Process(leash).children()[0].pid)


# Files


@pytest.mark.parametrize("name", ["secrets.json", "session.json", "ndif.db", "logs/api.log"])
def test_a_file_of_the_session(name: str, farm: Farm, victim: Victims, contained: Contained) -> None:
    victim.target["secret"] = str(farm.session_dir / name)
    contained("read_a_secret_file")


def test_another_models_weights(farm: Farm, victim: Victims, contained: Contained) -> None:
    victim.target["secret"] = str(weights_of(farm, models.LLAMA))
    contained("read_a_secret_file")


def test_a_project_that_the_farm_was_started_in(victim: Victims, contained: Contained) -> None:
    victim.target["secret"] = __file__
    contained("read_a_secret_file")


@pytest.mark.parametrize("name", ["open_weights_for_writing", "open_weights_again_for_writing"])
@pytest.mark.parametrize("repo_id", [models.GPT2, models.LLAMA])
def test_weights(name: str, repo_id: str, farm: Farm, victim: Victims, contained: Contained) -> None:
    victim.target["weights"] = str(weights_of(farm, repo_id))
    contained(name)


# Processes


@pytest.mark.parametrize("kind", ["supervisor", *PROCESSES, "zygote"])
def test_a_process(kind: str, farm: Farm, zygote: psutil.Process, victim: Victims, contained: Contained) -> None:
    pid = process_of(farm, kind, zygote)
    executable = int(Path(f"/proc/{pid}/maps").read_text().partition("-")[0], 16)
    victim.target |= {"pid": pid, "descriptor": 0}
    for name in ("signal_another", "trace_another", "hold_another", "list_anothers_descriptors"):
        contained(name)
    victim.target["word"] = "\0"  # which ends each variable, and is all that a broker leaves of its own
    contained("read_anothers_environment")
    victim.target |= {"word": ELF, "address": executable}
    contained("read_anothers_memory")
    contained("read_anothers_memory_by_call")


def test_the_farms_environment(farm: Farm, zygote: psutil.Process, victim: Victims, contained: Contained) -> None:
    victim.target |= {"pid": process_of(farm, "replica", zygote), "word": farm_secrets(farm)[0]}
    contained("read_anothers_environment")


def test_no_runner_holds_a_secret_of_the_farm(farm: Farm, send: Send) -> None:
    halves = [[secret[:16], secret[16:]] for secret in farm_secrets(farm)]
    assert "no secret anywhere" in send("find_a_secret_in_its_memory", {"secrets": halves})


# Other people's jobs


@pytest.fixture
def others_result(farm: Farm, remote_model: Callable[[str], Any]) -> tuple[Sender, str]:
    """A job of somebody else's that is over, and its sender."""
    model = remote_model(models.GPT2)
    sender = Sender(farm.url, model.to_model_key(), record(model, blocks.good))
    id = sender.submit()
    sender.wait_for(id, "COMPLETED")
    return sender, id


@pytest.fixture
def others_payload(farm: Farm, remote_model: Callable[[str], Any]) -> Iterator[str]:
    """A job of somebody else's that waits behind one that does not end."""
    model = remote_model(models.LLAMA)
    sender = Sender(farm.url, model.to_model_key(), record(model, blocks.endless))
    first, second = sender.submit(), sender.submit()
    sender.wait_printed(first, "running")
    yield second
    for id in (second, first):
        sender.cancel(id)
        sender.wait_for(id, "ERROR")


def test_a_payload_that_waits(farm: Farm, others_payload: str, victim: Victims, contained: Contained) -> None:
    question = f"HGET ndif:job:{others_payload} payload"
    victim.target |= {"broker": farm.variables["NDIF_BROKER_URL"], "question": question}
    contained("ask_the_broker")


def test_a_result_in_the_broker(
    farm: Farm, others_result: tuple[Sender, str], victim: Victims, contained: Contained
) -> None:
    found = farm.redis().hget(f"ndif:job:{others_result[1]}", "result")
    assert isinstance(found, bytes)
    victim.target |= {"broker": farm.variables["NDIF_BROKER_URL"], "question": f"GET {found.decode()}"}
    contained("ask_the_broker")


def test_a_result_by_its_url(others_result: tuple[Sender, str], victim: Victims, contained: Contained) -> None:
    sender, id = others_result
    victim.target["url"] = sender.status(id)["data"]
    contained("fetch_anothers_result")
