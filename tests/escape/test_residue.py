"""Nothing of a job outlives it: what a hostile block changes shows in its own job and in no later one, which sees what
the first job of a fresh replica saw, and whose values are, bit by bit, those of the model loaded here.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from ndif_tasks import fleet
from tests import models
from tests.contract.support import assert_equal, layers, recorder
from tests.farm import Farm, beneath, wait_until
from tests.sender import Sender, record

from .residue import ends
from .residue.acts import Acts
from .residue.facts import FACTS, look
from .residue.on_the_model import MODEL, WEIGHTS
from .residue.on_the_runtime import RUNTIME

PROMPT = "The farm answers"
LARGE = "ndif-tests/small-gpt2"
#: Names of replicas that other tests' jobs have not been in.
FRESH = {models.GPT2: "ndif-tests/fresh-gpt2", models.LLAMA: "ndif-tests/fresh-llama"}
#: Large enough for huge pages: a zygote holds such weights otherwise than those of the tiny ones.
FRESH |= {LARGE: "ndif-tests/fresh-small-gpt2"}
ALL = MODEL | RUNTIME


@dataclass
class Victim:
    """A model's replica: what its first job saw, the values it must give, and all that was drawn in it at random."""

    model: Any
    seen: dict[str, object]
    values: list[torch.Tensor]
    drawn: list[int]

    def suffers(self, acts: Acts, end: Callable[[], object] = bool) -> str:
        """Have a job do all of these and end; each must show in that job. Gives the job's error, if it ends in one."""
        from nnsight.intervention.backends.remote import RemoteError

        model, error = self.model, ""
        backend, steps = recorder(model), [(name, FACTS[fact], act) for name, (fact, act) in acts.items()]
        try:
            with model.session(backend=backend):
                import os

                for name, fact, act in steps:
                    before = fact(model)
                    act(model)
                    if fact(model) != before:
                        os.write(1, name.encode() + b"\n")  # to print may no longer be possible
                end()
        except RemoteError as told:
            error = str(told)
        assert [line for line in backend.lines if line in acts] == list(acts), error
        return error

    def is_fresh(self) -> None:
        """Demand that a job sees and computes what the first one did, and draws what none has drawn."""
        self.check(*probe(self.model, look, remote=True))

    def check(self, seen: dict[str, object], values: list[torch.Tensor], drawn: list[int]) -> None:
        """Demand it of what a job answered."""
        for name in FACTS:
            assert_equal(self.seen[name], seen[name], name)
        assert_equal(self.values, values)
        assert not set(drawn) & set(self.drawn)
        self.drawn += drawn


def probe(model: Any, look: Callable[[Any], dict[str, object]], **how: Any) -> Any:
    """What a job sees; what it computes: logits, a gradient and a sampled text; and what it drew without a seed."""
    block, answer = layers(model)[0], None
    with model.session(**how):
        import nnsight
        import torch

        drawn, seen = ends.draw(), look(model)
        with model.trace(PROMPT):
            hidden = block.output.requires_grad_(True)
            logits = model.lm_head.output
            with logits[:, -1].max().backward():
                grad = hidden.grad.clone()
        torch.manual_seed(7)
        with model.generate(PROMPT, max_new_tokens=4, min_new_tokens=4, do_sample=True) as tracer:
            ids = tracer.result
        answer = nnsight.save([seen, [logits.detach(), grad, ids], drawn])
    return answer


@pytest.fixture(scope="module")
def victims(farm: Farm, made: Path, client: Any, local_model: Callable[[str], Any]) -> Iterator[dict[str, Victim]]:
    """A fresh replica of each architecture, which must be there until the last test has used it."""
    client.register("tests.escape.residue")
    for repo_id, fresh in FRESH.items():
        size, arch = repo_id.removeprefix("ndif-tests/").split("-")
        models.hold(arch, size, made, farm.hf_home, fresh)
    farm.ndif("deploy", *FRESH.values())
    before = replicas(farm)
    found = {}
    for repo_id, fresh in FRESH.items():
        model = client.TransformersModel(fresh, task="text-generation")
        seen, values, drawn = probe(model, look, remote=True)
        _, here, _ = probe(local_model(repo_id), lambda _: {})
        assert_equal(here, values)
        found[repo_id] = Victim(model, seen, here, drawn)
    yield found
    assert len(before) == len(FRESH) and replicas(farm) == before
    for fresh in FRESH.values():
        farm.ndif("evict", fresh)


def replicas(farm: Farm) -> dict[str, int]:
    """The fresh replicas' processes, by model."""
    alive = fleet.alive(farm.redis(), "replica").values()
    return {record["repo_id"]: record["worker_pid"] for record in alive if record["repo_id"] in FRESH.values()}


@pytest.fixture
def gpt2(victims: dict[str, Victim]) -> Victim:
    """The fresh GPT-2."""
    return victims[models.GPT2]


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_write_to_the_weights_is_its_own_jobs(name: str, gpt2: Victim) -> None:
    gpt2.suffers({name: WEIGHTS[name]})
    gpt2.is_fresh()


@pytest.mark.parametrize("name", ALL)
def test_a_change_of_anything_else_is_its_own_jobs(name: str, gpt2: Victim) -> None:
    if name == "rewrite_machine_code" and platform.machine() != "x86_64":
        pytest.skip("the code it writes is another processor's")
    gpt2.suffers({name: ALL[name]})
    gpt2.is_fresh()


@pytest.mark.parametrize("repo_id", FRESH)
def test_weights_written_in_every_way_are_the_next_jobs_and_the_one_afters_own(
    repo_id: str, victims: dict[str, Victim]
) -> None:
    victims[repo_id].suffers(WEIGHTS)
    victims[repo_id].is_fresh()
    victims[repo_id].is_fresh()


@pytest.mark.parametrize("end", ends.ENDS)
def test_a_job_that_ends_badly_takes_what_it_did_with_it(end: str, gpt2: Victim) -> None:
    error = gpt2.suffers({"write_raw_memory": WEIGHTS["write_raw_memory"]}, ends.ENDS[end])
    assert ends.TOLD[end] in error
    gpt2.is_fresh()


def test_a_seed_is_its_own_jobs(gpt2: Victim) -> None:
    gpt2.suffers({}, ends.seed)
    gpt2.is_fresh()
    ends.seed()
    assert not set(ends.draw()) & set(gpt2.drawn)


def test_a_runner_made_while_threads_still_write_is_fresh(gpt2: Victim, farm: Farm) -> None:
    def write(model: Any, backend: Any) -> None:
        act = RUNTIME["leave_threads_writing"][1]
        with model.session(backend=backend):
            act(model)

    def look_around(model: Any, backend: Any) -> None:
        probe(model, look, backend=backend)

    # The runner of a job that waits is made as soon as the one before has answered, before its end.
    writer = Sender(farm.url, gpt2.model.to_model_key(), record(gpt2.model, write))
    last = writer.with_blob(record(gpt2.model, look_around))
    replica = psutil.Process(replicas(farm)[FRESH[models.GPT2]])
    replica.suspend()
    try:
        writer.submit()
        id = last.submit()
    finally:
        replica.resume()
    gpt2.check(*last.values(id)["answer"])


def test_a_runner_holds_its_own_descriptors_and_none_of_the_zygotes(victims: dict[str, Victim]) -> None:
    for victim in victims.values():
        kinds = [kind for _, kind, _ in victim.seen["descriptors"]]  # type: ignore[attr-defined]
        assert kinds == ["/dev/null", "pipe:", "pipe:", "socket:"]


def test_how_a_job_ended_is_told_after_one_that_took_apart_what_it_could_reach(gpt2: Victim) -> None:
    gpt2.suffers({}, ends.take_epolls_apart)
    assert ends.TOLD["leave_python"] in gpt2.suffers({}, ends.leave_python)
    gpt2.is_fresh()


def test_neither_files_nor_memory_nor_processes_are_left(gpt2: Victim, farm: Farm) -> None:
    model = gpt2.model
    with model.session(remote=True):
        import nnsight

        left = nnsight.save(ends.leave_things())
    assert left == ["/tmp"]  # its own, in memory
    gpt2.is_fresh()
    for place in ends.PLACES:
        assert not [name for name in os.listdir(place) if name.startswith(ends.NAME)]
    replica = psutil.Process(replicas(farm)[FRESH[models.GPT2]])

    def only_one_runner() -> bool:
        names = sorted(name for name, _ in beneath(replica))
        return names in (["ndif-runner", "ndif-zygote"], ["ndif-door", "ndif-door", "ndif-runner", "ndif-zygote"])

    wait_until(only_one_runner, what="one runner to be left")
