"""What a request asks of the model and of the interpreter: adapters, attention, names, modules, classes."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests import models

from .conftest import logits_of
from .support import BOTH, assert_equal, attention, layers

PROMPT = "The farm answers"
ADAPTERS = {models.GPT2: models.GPT2_LORA, models.LLAMA: models.LLAMA_LORA}
ARCHS = {models.GPT2: "gpt2", models.LLAMA: "llama"}

HELPERS = '''
"""Helpers of a client."""

import torch

SCALE = 3.0


class Summary:
    def __init__(self, values):
        self.values = values

    def total(self):
        return self.values.sum() * SCALE


def steer(hidden, by=1.0):
    return _unit(hidden) * by * SCALE


def _unit(hidden):
    return hidden / hidden.norm(dim=-1, keepdim=True)
'''


@dataclasses.dataclass
class Reading:
    """A value of the client's own class."""

    name: str
    values: torch.Tensor

    def doubled(self) -> torch.Tensor:
        return self.values * 2


class Point(tuple):
    """A tuple of the client's own class."""

    @property
    def size(self) -> int:
        return len(self)


class Colour(enum.Enum):
    """An enumeration of the client's own."""

    RED = 1
    GREEN = 2


class Probe(torch.nn.Module):
    """A module of the client's own class."""

    def __init__(self, width: int) -> None:
        super(Probe, self).__init__()  # noqa: UP008 (a class rebuilt from its source has no __class__ cell)
        self.linear = torch.nn.Linear(width, 2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.linear(hidden)


@pytest.fixture
def helpers(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that lies beside a client's script, and that the farm does not have."""
    import cloudpickle
    import cloudpickle.cloudpickle as registry

    (tmp_path / "client_helpers.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(tmp_path)
    import client_helpers

    client.register(client_helpers)
    yield client_helpers
    if "client_helpers" in registry._PICKLE_BY_VALUE_MODULES:
        cloudpickle.unregister_pickle_by_value(client_helpers)
    del sys.modules["client_helpers"]


@BOTH
def test_an_adapter_that_the_farm_holds_acts_as_here(
    repo_id: str, client: Any, made: Path, remote_model: Callable[[str], Any], local_model: Callable[[str], Any]
) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        with model.trace(PROMPT, **how):
            hidden = block.output.save()
            logits = model.lm_head.output.save()
        return [hidden, logits]

    folder, adapter = (make(ARCHS[repo_id], "tiny", made) for make in (models.made_model, models.made_lora))
    here = client.TransformersModel(str(folder), task="text-generation", peft=str(adapter), dispatch=True)
    here._module.eval().requires_grad_(False)
    there = client.TransformersModel(repo_id, task="text-generation", peft=ADAPTERS[repo_id])
    adapted = run(there, remote=True)
    assert_equal(run(here), adapted)
    bare = run(remote_model(repo_id), remote=True)
    assert_equal(run(local_model(repo_id)), bare)
    assert not torch.equal(adapted[1], bare[1])


def test_an_adapter_that_the_farm_does_not_hold_is_refused_in_a_sentence(gpt2: Any, next_job_works: None) -> None:
    from nnsight.intervention.backends.remote import RemoteBackend, RemoteError

    env = {**gpt2._remoteable_get_env(), "peft": "ndif-tests/nobody-made-this"}
    with (
        pytest.raises(RemoteError, match="ndif-tests/nobody-made-this") as caught,
        gpt2.trace(PROMPT, backend=RemoteBackend(gpt2.to_model_key(), env=env)),
    ):
        logits = gpt2.lm_head.output.save()  # noqa: F841
    assert "Traceback" not in str(caught.value)


@BOTH
def test_eager_attention_gives_its_weights_and_the_next_job_runs_the_default(
    repo_id: str, client: Any, made: Path, remote_model: Callable[[str], Any], local_model: Callable[[str], Any]
) -> None:
    def run(model: Any, **how: Any) -> Any:
        attn = attention(model, 0)
        with model.trace(PROMPT, **how):
            weights = attn.output[1].save()
            logits = model.lm_head.output.save()
        return [weights, logits]

    eager = {"task": "text-generation", "attn_implementation": "eager"}
    here = client.TransformersModel(str(models.made_model(ARCHS[repo_id], "tiny", made)), dispatch=True, **eager)
    here._module.eval().requires_grad_(False)
    there = client.TransformersModel(repo_id, **eager)
    weights, _ = run(there, remote=True)
    assert_equal(run(here), run(there, remote=True))
    assert torch.allclose(weights.sum(-1), torch.ones(()))
    weights, logits = run(remote_model(repo_id), remote=True)
    assert weights is None
    assert torch.equal(logits, logits_of(local_model(repo_id)))


def test_an_attention_that_nobody_knows_is_refused_in_a_sentence(gpt2: Any, next_job_works: None) -> None:
    from nnsight.intervention.backends.remote import RemoteBackend, RemoteError

    backend = RemoteBackend(gpt2.to_model_key(), env={"attn_implementation": "telepathy"})
    with pytest.raises(RemoteError, match="telepathy") as caught, gpt2.trace(PROMPT, backend=backend):
        logits = gpt2.lm_head.output.save()  # noqa: F841
    assert "Traceback" not in str(caught.value)


@BOTH
def test_renamed_modules_are_reached_by_either_name(client: Any, made: Path, repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.trace(PROMPT, **how) as tracer:
            cache = tracer.cache(modules=[model.blocks[1].feed_forward])
            hidden = model.blocks[0].output.save()
            inner = model.blocks[1].feed_forward.output.save()
        return [hidden, inner, cache[model.blocks[1].mlp.path].output]

    path = "transformer.h" if repo_id == models.GPT2 else "model.layers"
    names = {"task": "text-generation", "rename": {path: "blocks", "mlp": "feed_forward"}}
    here = client.TransformersModel(str(models.made_model(ARCHS[repo_id], "tiny", made)), dispatch=True, **names)
    here._module.eval().requires_grad_(False)
    assert_equal(run(here), run(client.TransformersModel(repo_id, **names), remote=True))


@BOTH
def test_a_local_module_is_shipped_by_value(same: Callable[..., Any], repo_id: str, helpers: Any) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        with model.trace(PROMPT, **how):
            block.output = helpers.steer(block.output, by=2.0)
            total = helpers.Summary(block.output).total().save()
            logits = model.lm_head.output.save()
        return [total, logits]

    same(run, repo_id)


def test_a_local_module_is_imported_inside_a_session(same: Callable[..., Any], helpers: Any) -> None:
    def run(model: Any, **how: Any) -> Any:
        steer = helpers.steer
        with model.session(**how):
            with model.trace(PROMPT):
                hidden = model.transformer.h[0].output
            steered = steer(hidden).save()
        return steered

    same(run, models.GPT2)


def test_a_module_that_the_farm_lacks_is_named_with_the_way_out(gpt2: Any, helpers: Any, next_job_works: None) -> None:
    import cloudpickle
    from nnsight.intervention.backends.remote import RemoteError

    cloudpickle.unregister_pickle_by_value(helpers)
    with pytest.raises(RemoteError, match="client_helpers") as caught, gpt2.trace(PROMPT, remote=True):
        steered = helpers.steer(gpt2.transformer.h[0].output).save()  # noqa: F841
    assert "nnsight.register('client_helpers')" in str(caught.value)


def test_an_import_that_the_farm_lacks_is_named_with_the_callers_line(gpt2: Any, next_job_works: None) -> None:
    from nnsight.intervention.backends.remote import RemoteError

    missing = "No module named 'a_library_of_nobody'"
    with pytest.raises(RemoteError, match=missing) as caught, gpt2.trace(PROMPT, remote=True):
        logits = gpt2.lm_head.output.save()  # noqa: F841
        import a_library_of_nobody  # noqa: F401
    assert "import a_library_of_nobody" in str(caught.value)


def test_modules_that_nothing_loaded_before_are_found_in_the_jail(gpt2: Any) -> None:
    names = ("sqlite3", "xml.etree.ElementTree", "zoneinfo", "sympy", "einops", "pandas.plotting", "tarfile", "this")

    with gpt2.trace(PROMPT, remote=True):
        import importlib
        import tempfile
        from pathlib import Path

        found = [importlib.import_module(name).__name__ for name in names].save()  # type: ignore[attr-defined]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "mine").write_text("a file of the block's own")
            read = (Path(folder) / "mine").read_text()
        read.save()
    assert tuple(found) == names and read == "a file of the block's own"


@BOTH
def test_objects_of_the_clients_classes_come_back_as_its_own(
    repo_id: str, remote_model: Callable[[str], Any], local_model: Callable[[str], Any]
) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        with model.trace(PROMPT, **how):
            reading = Reading("first", block.output[:, -1]).save()
            nested = {"points": [Point((1, 2, 3))]}.save()
        return reading, nested

    (here, _), (there, nested) = run(local_model(repo_id)), run(remote_model(repo_id), remote=True)
    assert type(there) is Reading and there.name == here.name
    assert torch.equal(there.doubled(), here.doubled())
    assert type(nested["points"][0]) is Point and nested["points"][0].size == 3


def test_an_object_sent_with_the_block_comes_back_changed(gpt2: Any) -> None:
    sent = Reading("sent", torch.ones(3))
    with gpt2.trace(PROMPT, remote=True):
        seen = gpt2.lm_head.output  # noqa: F841
        back = Reading(sent.name + " back", sent.doubled()).save()
    assert type(back) is Reading and back.name == "sent back" and torch.equal(back.values, torch.full((3,), 2.0))


def test_enumerations_modules_and_functions_of_the_client_come_back(gpt2: Any) -> None:
    with gpt2.trace(PROMPT, remote=True):
        hidden = gpt2.transformer.h[0].output.save()
        torch.manual_seed(0)
        probe = Probe(48).save()
        read = probe(hidden).save()
        colours = {Colour.GREEN: Colour.RED}.save()
        double = (lambda x: 2 * x).save()
    assert colours == {Colour.GREEN: Colour.RED} and colours[Colour.GREEN] is Colour.RED
    assert type(probe) is Probe and torch.equal(probe(hidden), read)
    assert double(4) == 8
