"""The arena of a real GPU, and a replica on one. `make test-gpu` runs these where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ndif_tasks import fleet
from tests import models
from tests.contract.support import recorder
from tests.farm import Farm, beneath, wait_until

pytestmark = pytest.mark.gpu

GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
HELD = "ndif-tests/cuda-gpt2"
PROMPT = "The farm answers"

#: Run by itself: a process that has used a GPU is no use to a test that comes after.
HOLDS = """
import os, subprocess, sys, torch
from ndif_tasks.sandbox.weights import cuda, digest
there = cuda.Cuda()
there.begin(sys.argv[1])
arena, (descriptor,) = there.create(2 * digest.CHUNK_BYTES)
arena.zero_()
secret = digest.draw(arena.device)
before = digest.of(arena, secret)
subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1], str(descriptor)], check=True, pass_fds=[descriptor])
after = digest.of(arena, secret)
print(arena.device.type, digest.changed(before, after), int((arena != 0).sum()), int(arena[-1]))
"""
WRITES = """
import sys, torch
from ndif_tasks.sandbox.weights import cuda, digest
there = cuda.Cuda()
there.begin(sys.argv[1])
arena = there.attach((int(sys.argv[2]),), 2 * digest.CHUNK_BYTES)
assert int(arena.sum()) == 0
arena[-1] = 9
torch.cuda.synchronize()
"""


def run(code: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120, cwd=models.ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_one_process_writes_another_that_made_the_arena_sees() -> None:
    assert run(HOLDS, GPU, WRITES) == "cuda [1] 1 9"


def test_the_sums_of_a_gpu_are_those_of_the_cpu() -> None:
    code = """
import torch
from ndif_tasks.sandbox.weights import digest
arena = torch.randint(0, 256, (3 * digest.CHUNK_BYTES,), dtype=torch.uint8)
secret = digest.draw(arena.device)
assert torch.equal(digest.of(arena, secret), digest.of(arena.cuda(), secret.cuda()).cpu())
"""
    run(code)


def test_a_call_that_fails_says_why_in_one_sentence() -> None:
    code = """
import sys
from ndif_tasks.sandbox.weights import cuda
there = cuda.Cuda()
there.begin(sys.argv[1])
try:
    there.create(2**50)
except RuntimeError as error:
    print(error)
"""
    assert run(code, GPU) == "CUDA's cuMemCreate failed: out of memory."


def test_a_replica_on_a_gpu_computes_and_is_put_right(
    farm: Farm, made: Path, client: Any, local_model: Callable[[str], Any]
) -> None:
    import torch

    models.hold("gpt2", "tiny", made, farm.hf_home, HELD)
    argv = [sys.executable, "-m", "celery", "-A", "ndif_tasks", "worker", "-Q", HELD, "-n", "cuda-gpt2@%h"]
    log = farm.home / "cuda-gpt2.log"
    with log.open("wb") as file:
        environment = farm.environment | {"CUDA_VISIBLE_DEVICES": GPU}
        worker = subprocess.Popen(argv, env=environment, cwd=models.ROOT, stdout=file, stderr=file)
    try:
        wait_until(lambda: _serves(farm, worker, log), 120, "the replica to serve")
        model, here = client.TransformersModel(HELD, task="text-generation"), local_model(models.GPT2)
        first = _logits(model, backend=(backend := recorder(model)))
        # Another device computes otherwise, and not by much.
        assert torch.allclose(first, _logits(here), atol=1e-3)
        assert backend.meta["max_mem_by_gpu"][GPU] > 0
        _write(model)
        assert torch.equal(_logits(model, remote=True), first)
        _fault(model)
        assert torch.equal(_logits(model, remote=True), first)
        (zygote,) = [one for name, one in beneath(psutil.Process(worker.pid)) if name == "ndif-zygote"]
        assert "/dev/nvidia" not in Path(f"/proc/{zygote.pid}/maps").read_text()
    finally:
        worker.terminate()
        worker.wait(60)


def _serves(farm: Farm, worker: subprocess.Popen[bytes], log: Path) -> bool:
    assert worker.poll() is None, log.read_text()
    found = fleet.alive(farm.redis(), "replica").values()
    return any(one.get("repo_id") == HELD and one["state"] == fleet.State.HOT for one in found)


def _logits(model: Any, **how: Any) -> Any:
    with model.trace(PROMPT, **how):
        logits = model.lm_head.output.save()
    return logits


def _write(model: Any) -> None:
    with model.session(remote=True):
        model._module.get_input_embeddings().weight.zero_()


def _fault(model: Any) -> None:
    """An access that the device refuses, after which its context is good for nothing."""
    from nnsight.intervention.backends.remote import RemoteError

    with pytest.raises(RemoteError), model.session(remote=True):
        import torch

        far = torch.full((1,), 10**9, device="cuda")
        torch.zeros(4, device="cuda")[far].cpu()
