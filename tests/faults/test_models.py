"""Models that cannot be loaded, and replicas typed by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ndif_models.keys import ModelKey
from ndif_models.snapshots import folder
from tests import blocks, models
from tests.farm import Farm, wait_until
from tests.faults.conftest import replica
from tests.sender import Sender, record, refusal

BY_HAND, CORRUPT = "ndif-tests/by-hand", "ndif-tests/corrupt"


@pytest.fixture(scope="module")
def held(frail: Farm, made: Path) -> Farm:
    """The farm, which holds one model more."""
    models.hold("gpt2", "tiny", made, frail.hf_home, BY_HAND)
    return frail


def worker(queues: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "ndif_tasks", "worker", "-Q", queues]


@contextmanager
def typed(farm: Farm, queues: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A replica started by hand, HOT until the context ends."""
    process = subprocess.Popen(
        worker(queues),
        env=farm.environment | variables,
        cwd=farm.home,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        replica(farm, BY_HAND)
        yield process
    finally:
        process.terminate()
        process.wait(30)


def by_hand(sender: Sender, blob: bytes | None = None) -> Sender:
    return Sender(sender.url, str(ModelKey(BY_HAND)), blob or sender.blob)


def test_a_worker_typed_by_hand_serves_traces_and_ends_those_that_take_too_long(
    held: Farm, sender: Sender, remote_model: Callable[[str], Any]
) -> None:
    endless = by_hand(sender, record(remote_model(models.GPT2), blocks.endless))
    with typed(held, "by-hand", NDIF_DEFAULT_EXECUTION_TIMEOUT_SECONDS="2") as process:
        over, following = endless.submit(), by_hand(sender).submit()
        ended = endless.wait_for(over, "ERROR")
        assert ended["description"].startswith("The block ran longer than a job may (2 s).")
        assert ended["meta"]["runtime"] >= 2 and ended["meta"]["max_memory_usage"] > 0
        assert "logits" in sender.values(following)
        (entry,) = held.replicas(BY_HAND)
        assert (entry["application_state"], entry["queue"]) == ("RUNNING", BY_HAND)
    assert process.returncode == 0
    assert held.replicas(BY_HAND) == []
    assert "is not deployed" in refusal(by_hand(sender).post(), 404)


def test_a_worker_that_is_stopped_finishes_its_job_first(held: Farm, sender: Sender, slow: Sender) -> None:
    mine = by_hand(sender, slow.blob)
    with typed(held, BY_HAND):
        id = mine.submit()
        mine.wait_printed(id, "running")
    assert mine.status(id)["status"] == "COMPLETED"


def refused(farm: Farm, queues: str) -> str:
    """The last line, behind Celery's warnings about root, with which a worker refuses to start."""
    done = subprocess.run(
        worker(queues), env=farm.environment, cwd=farm.home, capture_output=True, text=True, timeout=60
    )
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_worker_for_a_model_that_is_not_held_refuses(held: Farm) -> None:
    assert "holds no model called 'nobody/here'" in refused(held, "nobody/here")
    assert "holds no model called 'nobody'" in refused(held, "nobody")
    assert "not its revision other" in refused(held, f"{BY_HAND}@other")
    assert "not a valid" in refused(held, "../etc") or "holds no model" in refused(held, "../etc")


def test_a_worker_for_two_models_refuses(held: Farm) -> None:
    assert "holds one model" in refused(held, f"by-hand,{models.GPT2}")


@pytest.fixture
def corrupt(frail: Farm, made: Path) -> Iterator[str]:
    """A held model whose weights were damaged on the disk."""
    found = models.hold("gpt2", "tiny", made, frail.hf_home, CORRUPT)
    weights = (folder(frail.hf_home, found) / "model.safetensors").resolve()
    whole = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(whole[: len(whole) // 2])
    yield CORRUPT
    frail.ndif("evict", CORRUPT, check=False)


def test_a_model_that_cannot_be_loaded_has_one_definite_reason_until_it_is_whole(
    frail: Farm, sender: Sender, corrupt: str, made: Path
) -> None:
    mine = Sender(sender.url, str(ModelKey(corrupt)), sender.blob)
    done = frail.ndif("deploy", corrupt, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{corrupt} cannot be loaded: " in done.stderr
    assert refusal(mine.post(), 409) in done.stderr
    # The replica that failed may still be leaving.
    wait_until(lambda: [one["application_state"] for one in frail.replicas(corrupt)] == ["UNHEALTHY"], what="UNHEALTHY")
    assert "logits" in sender.values(sender.submit())
    models.hold("gpt2", "tiny", made, frail.hf_home, corrupt)
    frail.ndif("deploy", corrupt)
    assert "logits" in mine.values(mine.submit())
