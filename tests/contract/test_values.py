"""What comes back, and how: kinds and sizes of values, compression, lines, and what a job cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests import models

from .conftest import logits_of
from .support import BOTH, assert_equal, layers, recorder

PROMPT = "The farm answers"


@BOTH
def test_plain_values_of_every_kind_come_back(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        block = layers(model)[0]
        with model.trace(PROMPT, **how):
            hidden = block.output
            number = hidden.shape[-1].save()
            real = hidden.mean().item().save()
            text = f"{hidden.shape[1]} tokens".save()
            nothing = nnsight.save(None)
            truth = nnsight.save(bool((hidden > 0).any()))
            both = (hidden[0, 0], hidden[0, 1]).save()
            table = {"array": hidden.numpy(), "nested": {"ids": [1, 2.5, None]}, 3: b"bytes"}.save()
            kinds = [hidden.half(), hidden.bfloat16(), hidden.long(), hidden > 0, hidden[:, :0]].save()
        return [number, real, text, nothing, truth, both, table, kinds]

    assert isinstance(same(run, repo_id)[6]["array"], numpy.ndarray)


@BOTH
def test_a_whole_output_comes_back_with_its_class(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.trace(PROMPT, **how) as tracer:
            result = tracer.result.save()
        keys = [(layer.keys, layer.values) for layer in result.past_key_values.layers]
        return [type(result).__name__, result.logits, keys]

    same(run, repo_id)


def test_tensors_of_every_layout_come_back(same: Callable[..., Any]) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.trace(PROMPT, **how):
            hidden = model.transformer.h[0].output
            turned = hidden.transpose(1, 2).save()
            spread = hidden[0, 0].expand(4, -1).save()
            complex_ = torch.fft.fft(hidden).save()
            sparse = hidden.relu().to_sparse().save()
            weight = torch.nn.Parameter(hidden[0, 0]).save()
            empty = torch.empty(0, 3).save()
        assert turned.stride() == hidden_stride(turned) and type(weight) is torch.nn.Parameter
        return [turned, spread, complex_, sparse.to_dense(), weight, empty]

    same(run, models.GPT2)


def hidden_stride(turned: torch.Tensor) -> tuple[int, ...]:
    """The strides of a transposed hidden state."""
    _, width, length = turned.shape
    return (width * length, 1, width)


@pytest.mark.parametrize("compress", [False, True])
def test_values_are_the_same_compressed_or_not(
    compress: bool, client: Any, gpt2: Any, clean_logits: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.CONFIG.API, "COMPRESS", compress)
    assert torch.equal(logits_of(gpt2, remote=True), clean_logits)


@pytest.mark.parametrize("compress", [False, True])
def test_a_result_over_the_inline_limit_is_fetched_from_a_url(compress: bool, gpt2: Any) -> None:
    backend = recorder(gpt2)
    backend.compress = compress
    with gpt2.trace(PROMPT, backend=backend):
        seen = gpt2.lm_head.output  # noqa: F841
        noise = torch.rand(3_000_000, generator=torch.Generator().manual_seed(1)).save()
    assert backend.by_url and backend.sizes[0] > 9 * 2**20
    assert torch.equal(noise, torch.rand(3_000_000, generator=torch.Generator().manual_seed(1)))


def test_a_small_result_rides_the_socket(gpt2: Any) -> None:
    backend = recorder(gpt2)
    with gpt2.trace(PROMPT, backend=backend):
        logits = gpt2.lm_head.output.save()  # noqa: F841
    assert not backend.by_url


@pytest.mark.parametrize("mib", [1, 4, 7])
def test_a_result_as_large_as_the_socket_takes_arrives_whole(mib: int, gpt2: Any) -> None:
    backend = recorder(gpt2)
    with gpt2.trace(PROMPT, backend=backend):
        noise = torch.rand(mib * 2**18, generator=torch.Generator().manual_seed(mib)).save()
    assert not backend.by_url and backend.sizes[0] > (mib - 1) * 2**20
    assert torch.equal(noise, torch.rand(mib * 2**18, generator=torch.Generator().manual_seed(mib)))


@pytest.mark.parametrize("compress", [False, True])
def test_a_payload_over_the_inline_limit_arrives_whole(
    compress: bool, client: Any, same: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.CONFIG.API, "COMPRESS", compress)
    sent = torch.rand(100, 1000, generator=torch.Generator().manual_seed(2))

    def run(model: Any, **how: Any) -> Any:
        with model.trace(PROMPT, **how):
            total = (model.transformer.h[0].output.sum() + sent.sum(0)).save()
        return total

    same(run, models.GPT2)


def test_a_view_of_a_large_tensor_travels_alone(gpt2: Any, local_gpt2: Any) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.trace("word " * 100, **how):
            hidden = model.transformer.h[0].output
            last = hidden[:, -1].save()
            parts = [hidden[0, 0, :4], hidden[0, 1, :4]].save()
        return [last, parts]

    backend = recorder(gpt2)
    backend.compress = False
    assert_equal(run(local_gpt2), run(gpt2, backend=backend))
    assert backend.sizes[0] < 6000


def test_views_of_one_tensor_saved_together_still_share_it(gpt2: Any) -> None:
    with gpt2.trace(PROMPT, remote=True):
        whole = gpt2.transformer.h[0].output.save()
        twice = [whole, whole].save()
    assert twice[0] is twice[1] and twice[0].data_ptr() == whole.data_ptr()


@BOTH
def test_meta_tells_what_a_job_cost_and_how_it_ran(repo_id: str, remote_model: Callable[[str], Any]) -> None:
    model = remote_model(repo_id)
    with model.trace(PROMPT, remote=True) as tracer:
        logits = model.lm_head.output.save()  # noqa: F841
    meta = tracer.backend.meta
    assert 0 < meta["runtime"] < 60
    assert 2**20 < meta["max_memory_usage"] < 2**34
    assert (meta["threads"], meta["dtype"]) == (2, "float32")
    assert meta["max_mem_by_gpu"] == {} and meta["max_mem_pct_by_gpu"] == {}


def test_a_failed_job_tells_its_cost_too(gpt2: Any) -> None:
    from nnsight.intervention.backends.remote import RemoteError

    with pytest.raises(RemoteError), gpt2.trace(PROMPT, remote=True) as tracer:
        seen = gpt2.lm_head.output  # noqa: F841
        raise ValueError("no")
    assert tracer.backend.meta["runtime"] > 0 and tracer.backend.meta["max_memory_usage"] > 0


def test_printed_lines_arrive_in_order_before_the_values(gpt2: Any) -> None:
    backend = recorder(gpt2)
    with gpt2.session(backend=backend):
        import sys

        print("before")
        for i in range(3):
            with gpt2.trace(PROMPT):
                print(f"trace {i}:", tuple(gpt2.transformer.h[0].output.shape))
        print("to stderr", file=sys.stderr)
        print("two\nlines, and no end", end="")
    traces = [f"trace {i}: (1, {len(gpt2.tokenizer(PROMPT).input_ids)}, 48)" for i in range(3)]
    assert backend.lines == ["before", *traces, "to stderr", "two", "lines, and no end"]
    assert backend.stages[-1] == "COMPLETED" and backend.updates[-1].status.name == "COMPLETED"


def test_a_job_goes_through_its_stages_in_order(gpt2: Any) -> None:
    backend = recorder(gpt2)
    with gpt2.trace(PROMPT, backend=backend):
        logits = gpt2.lm_head.output.save()  # noqa: F841
    stages = ["RECEIVED", "QUEUED", "PROVISIONING", "DEPLOYING", "DISPATCHED", "RUNNING", "COMPLETED"]
    assert backend.stages == [stage for stage in stages if stage in backend.stages]
    assert {"RECEIVED", "QUEUED", "RUNNING", "COMPLETED"} <= set(backend.stages)
