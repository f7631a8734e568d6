"""What the contract's tests share: the names of a model's parts, strict equality, and a backend that remembers.

nnsight is imported inside functions only: the ``client`` fixture must set its environment first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import pytest
import torch

from tests import models

#: Runs a test on both architectures.
BOTH = pytest.mark.parametrize("repo_id", [models.GPT2, models.LLAMA])


def is_gpt2(model: Any) -> bool:
    """Whether a model is the GPT-2, and not the Llama."""
    return bool(model.config.model_type == "gpt2")


def layers(model: Any) -> Any:
    """The blocks of a model."""
    return model.transformer.h if is_gpt2(model) else model.model.layers


def embedding(model: Any) -> Any:
    """The token embedding of a model."""
    return model.transformer.wte if is_gpt2(model) else model.model.embed_tokens


def final_norm(model: Any) -> Any:
    """The last normalisation of a model."""
    return model.transformer.ln_f if is_gpt2(model) else model.model.norm


def attention(model: Any, layer: int) -> Any:
    """A block's attention."""
    return layers(model)[layer].attn if is_gpt2(model) else layers(model)[layer].self_attn


def head_projection(model: Any, layer: int) -> Any:
    """The projection whose input is every head's output, side by side."""
    return attention(model, layer).c_proj if is_gpt2(model) else attention(model, layer).o_proj


def assert_equal(here: Any, there: Any, at: str = "value") -> None:
    """Demand the same type, shape, dtype and bits, through containers."""
    assert type(here) is type(there), at
    if isinstance(here, torch.Tensor):
        assert (here.dtype, here.shape) == (there.dtype, there.shape), at
        assert torch.equal(here, there), f"{at}: differs by at most {(here - there).abs().max()}"
    elif isinstance(here, numpy.ndarray):
        assert here.dtype == there.dtype and numpy.array_equal(here, there), at
    elif isinstance(here, Mapping):
        assert list(here) == list(there), at
        for key in here:
            assert_equal(here[key], there[key], f"{at}[{key!r}]")
    elif isinstance(here, list | tuple):
        assert len(here) == len(there), at
        for i, (one, other) in enumerate(zip(here, there, strict=True)):
            assert_equal(one, other, f"{at}[{i}]")
    else:
        assert here == there, at


def failure(run: Callable[..., Any], model: Any) -> str:
    """What the caller of a failing block is told."""
    from nnsight.intervention.backends.remote import RemoteError

    with pytest.raises(RemoteError) as caught:
        run(model, remote=True)
    return str(caught.value)


def frames(text: str) -> list[str]:
    """The files of a traceback's frames."""
    return re.findall(r'File "(.*?)", line', text)


def recorder(model: Any) -> Any:
    """A blocking backend that also keeps what the farm said: ``updates``, ``lines``, ``sizes``, ``by_url``."""
    from nnsight.intervention.backends.remote import RemoteBackend
    from nnsight.schema.response import Status

    class Recorder(RemoteBackend):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.updates: list[Any] = []
            self.sizes: list[int] = []

        @property
        def lines(self) -> list[str]:
            """What the block printed."""
            return [update.description for update in self.updates if update.status == Status.LOG]

        @property
        def stages(self) -> list[str]:
            """The stages the job went through."""
            return [update.status.name for update in self.updates if update.status != Status.LOG]

        @property
        def by_url(self) -> bool:
            """Whether the values were fetched from a URL."""
            return isinstance(self.updates[-1].data, str)

        def note(self, response: Any) -> bool:
            self.updates.append(response)
            return bool(super().note(response))

        def finalize(self, content: bytes) -> Any:
            self.sizes.append(len(content))
            return super().finalize(content)

    return Recorder(model.to_model_key(), env=model._remoteable_get_env())
