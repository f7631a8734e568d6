"""A whole replica whose weights another process holds, through a stand-in for a GPU that shares memory as one does: a
job's write is in the one copy that there is, until it is put right.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch

from ndif_tasks import fleet
from tests import models
from tests.contract.support import assert_equal, layers, recorder
from tests.farm import Farm, beneath, wait_until
from tests.weights import stand_in

PROMPT = "The farm answers"
HELD = {models.GPT2: "ndif-tests/held-gpt2", models.LLAMA: "ndif-tests/held-llama"}


@dataclass
class Held:
    """A replica started by hand, its model as a client has it, and the same model in this process."""

    model: Any
    local: Any
    worker: psutil.Process
    log: Path
    url: str

    def changes(self) -> list[int]:
        """How many bytes jobs changed of the weights, as the replica's log tells."""
        return [int(found) for found in re.findall(r"it changed (\d+) bytes", self.log.read_text())]

    def process(self, name: str) -> psutil.Process:
        """Its one process of this name."""
        (found,) = [one for called, one in beneath(self.worker) if called == name]
        return found

    def is_fresh(self) -> None:
        """Demand that a job computes what the model in this process does, bit by bit."""
        assert_equal(compute(self.local), compute(self.model, remote=True))


def compute(model: Any, **how: Any) -> Any:
    """Logits, a gradient, and a sampled text."""
    block, answer = layers(model)[0], None
    with model.session(**how):
        import nnsight
        import torch

        with model.trace(PROMPT):
            hidden = block.output.requires_grad_(True)
            logits = model.lm_head.output
            with logits[:, -1].max().backward():
                grad = hidden.grad.clone()
        torch.manual_seed(7)
        with model.generate(PROMPT, max_new_tokens=4, min_new_tokens=4, do_sample=True) as tracer:
            ids = tracer.result
        answer = nnsight.save([logits.detach(), grad, ids])
    return answer


@pytest.fixture(scope="module", params=list(HELD))
def held(
    request: pytest.FixtureRequest, farm: Farm, made: Path, client: Any, local_model: Callable[[str], Any]
) -> Iterator[Held]:
    """A replica of each architecture, one after the other."""
    name = HELD[request.param]
    models.hold(request.param.rpartition("-")[2], "tiny", made, farm.hf_home, name)
    argv = [sys.executable, "-m", "celery", "-A", "tests.weights.stand_in", "worker", "-Q", name]
    argv += ["-n", f"{name.rpartition('/')[2]}@%h", "--loglevel", "INFO"]
    log = farm.home / f"{name.rpartition('/')[2]}.log"
    environment = farm.environment | {"CUDA_VISIBLE_DEVICES": "0"}
    with log.open("wb") as file:
        worker = subprocess.Popen(argv, env=environment, cwd=models.ROOT, stdout=file, stderr=file)

    def serves() -> bool:
        assert worker.poll() is None, log.read_text()
        found = fleet.alive(farm.redis(), "replica").values()
        return any(one.get("repo_id") == name and one["state"] == fleet.State.HOT for one in found)

    try:
        wait_until(serves, 60, "the replica to serve")
        model = client.TransformersModel(name, task="text-generation")
        yield Held(model, local_model(request.param), psutil.Process(worker.pid), log, farm.url)
    finally:
        worker.terminate()
        worker.wait(30)


def test_values_are_those_of_the_model_loaded_here(held: Held) -> None:
    held.is_fresh()
    held.is_fresh()
    assert held.changes() == []


def test_a_write_is_found_counted_and_put_right(held: Held) -> None:
    model, before = held.model, held.changes()
    with model.session(remote=True):
        weight = model._module.get_input_embeddings().weight
        weight[3, 5] += 1.0
        was = weight[3, 5].clone().save()
    held.is_fresh()
    # One float32 became another; some of its bytes may be the same in both.
    assert was.item() != held.local._module.get_input_embeddings().weight[3, 5].item()
    (count,) = held.changes()[len(before) :]
    assert 1 <= count <= 4


def test_training_every_weight_is_put_right(held: Held) -> None:
    before = held.changes()
    assert not torch.equal(train(held.model), next(held.local._module.parameters()))
    held.is_fresh()
    (count,) = held.changes()[len(before) :]
    assert count > sum(parameter.numel() for parameter in held.local._module.parameters())


def train(model: Any) -> Any:
    """One weight after a step of all."""
    step = None
    with model.session(remote=True):
        import torch

        parameters = list(model._module.requires_grad_(True).parameters())
        model._module(torch.tensor([[1, 2, 3]])).logits.square().sum().backward()
        torch.optim.AdamW(parameters, lr=0.1).step()
        step = parameters[0].detach().clone().save()
    return step


def test_a_write_is_in_the_holders_memory_until_the_job_is_over(held: Held) -> None:
    holder, mark = held.process("ndif-holder"), 12345.678
    needle = torch.full((32,), mark).numpy().tobytes()
    assert needle not in arena(holder)
    id = begin_endless(held.model, mark)
    wait_until(lambda: needle in arena(holder), 60, "the write to be seen")
    httpx.delete(f"{held.url}/jobs/{id}", timeout=30).raise_for_status()
    wait_until(lambda: needle not in arena(holder), 60, "the write to be put right")
    held.is_fresh()


def begin_endless(model: Any, mark: float) -> str:
    """Start a job that writes a row of weights and never ends; its id."""
    backend = recorder(model)
    backend.blocking = False
    with model.session(backend=backend):
        import time

        model._module.get_input_embeddings().weight[0].fill_(mark)
        time.sleep(600)
    return str(backend.job_id)


def arena(process: psutil.Process) -> bytes:
    """What a process has mapped of a file of memory."""
    with open(f"/proc/{process.pid}/maps") as maps, open(f"/proc/{process.pid}/mem", "rb") as memory:
        (line,) = [line for line in maps if "memfd:weights" in line]
        start, end = (int(place, 16) for place in line.split()[0].split("-"))
        memory.seek(start)
        return memory.read(end - start)


def test_a_job_that_crashes_costs_itself_and_its_writes_are_put_right(held: Held) -> None:
    from nnsight.intervention.backends.remote import RemoteError

    model, before = held.model, held.changes()
    zygote, holder = held.process("ndif-zygote"), held.process("ndif-holder")
    with pytest.raises(RemoteError, match=r"crashed its process \(SIGSEGV\)"), model.session(remote=True):
        import ctypes

        model._module.get_input_embeddings().weight.zero_()
        ctypes.string_at(0)
    held.is_fresh()
    assert len(held.changes()) == len(before) + 1
    assert (held.process("ndif-zygote"), held.process("ndif-holder")) == (zygote, holder)


def test_what_a_job_took_of_the_device_is_told(held: Held) -> None:
    backend, model = recorder(held.model), held.model
    with model.trace(PROMPT, backend=backend):
        model.lm_head.output.save()
    peak = backend.meta["max_mem_by_gpu"]["0"]
    assert 0 < (peak - stand_in.PEAK_BYTES) < stand_in.TOTAL_BYTES
    assert backend.meta["max_mem_pct_by_gpu"] == {"0": round(100 * peak / stand_in.TOTAL_BYTES, 2)}


def test_a_saved_weight_is_not_the_whole_arena(held: Held) -> None:
    backend, model = recorder(held.model), held.model
    with model.session(backend=backend):
        weight = __import__("nnsight").save(next(model._module.parameters()))
    assert torch.equal(weight, next(held.local._module.parameters()))
    assert backend.sizes[0] < 2 * weight.nbytes


def test_a_replica_whose_holder_is_gone_ends_with_the_job_that_runs(held: Held) -> None:
    holder, mark = held.process("ndif-holder"), 54321.25
    id = begin_endless(held.model, mark)
    needle = torch.full((32,), mark).numpy().tobytes()
    wait_until(lambda: needle in arena(holder), 60, "the write to be seen")
    holder.kill()
    assert held.worker.is_running()
    httpx.delete(f"{held.url}/jobs/{id}", timeout=30).raise_for_status()
    wait_until(lambda: not held.worker.is_running() or held.worker.status() == psutil.STATUS_ZOMBIE, 60, "its end")
    assert "the weights cannot be checked" in held.log.read_text()
