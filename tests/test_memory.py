"""What fits in memory: a model, the private copy of its weights that a job makes, and what a job allocates."""

from __future__ import annotations

from pathlib import Path

import pytest

from ndif_models.errors import BadRequest
from ndif_models.settings import Settings
from ndif_tasks.replica import memory, worker
from ndif_tasks.replica.memory import Memory
from tests import models

GIB = 2**30
MEMINFO = "MemTotal:  1000 kB\nMemFree:   10 kB\nMemAvailable:   800 kB\nMapped:  300 kB\nHugePages_Total:       0\n"


def with_free(free_bytes: int) -> Memory:
    """A machine of which so much is free."""
    return Memory(total_bytes=100 * GIB, available_bytes=free_bytes, mapped_bytes=0)


def test_pages_that_processes_have_mapped_are_not_free() -> None:
    assert memory.read(MEMINFO) == Memory(1000 * 1024, 800 * 1024, 300 * 1024)
    assert memory.read(MEMINFO).free_bytes == 500 * 1024
    assert Memory(10, 3, 5).free_bytes == 0


def test_this_kernel_tells_it() -> None:
    found = memory.now()
    assert 0 < found.mapped_bytes < found.total_bytes and 0 < found.free_bytes < found.available_bytes


def test_a_model_fits_with_the_copy_of_a_job_that_writes_every_weight() -> None:
    assert memory.refusal("gpt2", 3 * GIB, True, with_free(6 * GIB)) is None
    assert memory.refusal("gpt2", 3 * GIB, True, with_free(6 * GIB - 1)) == (
        "The weights of gpt2 take 6144 MiB of memory, a copy for a job that writes them included (NDIF_ROOM_TO_TRAIN), "
        "and 6143 MiB are free."
    )


def test_a_model_fits_alone_where_nobody_trains() -> None:
    assert memory.refusal("gpt2", 3 * GIB, False, with_free(3 * GIB)) is None
    assert memory.refusal("gpt2", 3 * GIB, False, with_free(3 * GIB - 1)) == (
        "The weights of gpt2 take 3072 MiB of memory, no copy included, and 3071 MiB are free."
    )


def test_a_job_may_take_what_is_free_beside_its_copy_and_a_tenth_of_the_machine() -> None:
    assert memory.job_bytes(20 * GIB, with_free(90 * GIB)) == 60 * GIB
    assert memory.job_bytes(20 * GIB, with_free(0)) == 5 * GIB


def test_a_worker_refuses_what_does_not_fit(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = models.hold("gpt2", "tiny", made, tmp_path)
    weight_bytes = (made / "tiny-gpt2" / "model.safetensors").stat().st_size
    settings = Settings(hf_home=tmp_path)
    monkeypatch.setattr(memory, "now", lambda: with_free(2 * weight_bytes))
    assert worker.holdable(models.GPT2, settings).repo_id == held.repo_id
    monkeypatch.setattr(memory, "now", lambda: with_free(2 * weight_bytes - 1))
    with pytest.raises(BadRequest, match="a copy for a job that writes them"):
        worker.holdable(models.GPT2, settings)
    assert worker.holdable(models.GPT2, Settings(hf_home=tmp_path, room_to_train=False)).repo_id == held.repo_id
