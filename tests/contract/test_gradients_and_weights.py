"""Gradients of activations; weights that are read, and edits of weights that only their own job sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import models

from .support import BOTH, embedding, layers, recorder

PROMPT = "The farm answers"


@BOTH
def test_the_gradient_of_an_activation_opted_in(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        blocks = layers(model)
        with model.trace(PROMPT, **how):
            early = blocks[0].output.requires_grad_(True)
            late = blocks[1].output
            loss = model.lm_head.output[:, -1].max()
            with loss.backward():
                late_grad = late.grad.clone().save()
                late.grad = late.grad * 2
                early_grad = early.grad.clone().save()
        return [late_grad, early_grad]

    assert same(run, repo_id)[1].abs().max() > 0


@BOTH
def test_gradients_inside_invokes_are_of_their_own_rows(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        words, block = embedding(model), layers(model)[0]
        with model.trace(**how) as tracer:
            with tracer.invoke():
                words.output.requires_grad_(True)
            with tracer.invoke("One prompt"):
                model.lm_head.output.save()
            with tracer.invoke("Another, longer prompt"):
                hidden = block.output
                with model.lm_head.output.sum().backward():
                    grad = hidden.grad.clone().save()
        return grad

    same(run, repo_id)


def test_two_backward_passes_over_one_forward(same: Callable[..., Any]) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.trace(PROMPT, **how):
            hidden = model.transformer.h[0].output.requires_grad_(True)
            logits = model.lm_head.output
            with logits.sum().backward(retain_graph=True):
                one = hidden.grad.clone().save()
            with (logits.sum() * 2).backward():
                two = hidden.grad.clone().save()
        return [one, two]

    same(run, models.GPT2)


def test_a_gradient_not_opted_in_is_refused_and_says_so(gpt2: Any, client: Any, next_job_works: None) -> None:
    from nnsight.intervention.backends.remote import RemoteError

    with pytest.raises(RemoteError, match="does not require grad") as caught, gpt2.trace(PROMPT, remote=True):
        hidden = gpt2.transformer.h[0].output
        with gpt2.lm_head.output.sum().backward():
            grad = hidden.grad.save()  # noqa: F841
    assert "hidden = model.….output.requires_grad_(True)" in str(caught.value)


def test_a_plain_backward_not_opted_in_is_refused_with_the_same_hint(gpt2: Any, next_job_works: None) -> None:
    from nnsight.intervention.backends.remote import RemoteError

    with (
        pytest.raises(RemoteError, match="hint: the farm's weights"),
        gpt2.trace(PROMPT, remote=True),
    ):
        gpt2.lm_head.output.sum().backward()


@BOTH
def test_values_that_require_grad_come_back_so(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        with model.trace(PROMPT, **how):
            leaf = block.output.detach().clone().requires_grad_(True).save()
            last = leaf[:, -1].save()
        assert leaf.requires_grad and last.requires_grad
        return [leaf.detach(), last.detach()]

    same(run, repo_id)


@BOTH
def test_weights_are_read(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block, norm = layers(model)[0], model.lm_head
        with model.trace(PROMPT, **how):
            row = norm.weight[3].save()
            total = block.mlp._module.state_dict()
            names = sorted(total).save()
        return [row, names]

    same(run, repo_id)


def test_a_saved_weight_travels_alone(gpt2: Any, local_gpt2: Any) -> None:
    backend = recorder(gpt2)
    backend.compress = False
    with gpt2.trace(PROMPT, backend=backend):
        bias = gpt2.transformer.h[0].ln_1.bias.save()
        scale = gpt2.transformer.h[0].ln_1.weight.data.save()
    assert torch.equal(bias, local_gpt2.transformer.h[0].ln_1.bias)
    assert torch.equal(scale, local_gpt2.transformer.h[0].ln_1.weight)
    assert backend.sizes[0] < 4096


@BOTH
def test_an_edit_of_weights_acts_in_its_job_and_in_no_other(
    repo_id: str, remote_model: Callable[[str], Any], local_model: Callable[[str], Any]
) -> None:
    def edited(model: Any, **how: Any) -> Any:
        head = model.lm_head
        with model.session(**how):
            before = head._module.weight.detach().clone()
            head._module.weight[:, 0] = 3.0
            with model.trace(PROMPT):
                logits = model.lm_head.output.save()
            after = head._module.weight[0].clone().save()
            if not how:
                head._module.weight.copy_(before)
        return [logits, after]

    def clean(model: Any, **how: Any) -> Any:
        with model.trace(PROMPT, **how):
            logits = model.lm_head.output.save()
        return logits

    here, there = local_model(repo_id), remote_model(repo_id)
    pristine = clean(here)
    for mine, farms in zip(edited(here), edited(there, remote=True), strict=True):
        assert torch.equal(mine, farms)
    assert not torch.equal(edited(there, remote=True)[0], pristine)
    assert torch.equal(clean(there, remote=True), pristine)
