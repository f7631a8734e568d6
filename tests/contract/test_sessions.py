"""Several traces as one job: values that flow, libraries, training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .support import BOTH, embedding, layers

PROMPT = "The farm answers"


class LowRank(torch.nn.Module):
    """A small trainable addition to a module's output."""

    def __init__(self, width: int, rank: int) -> None:
        super(LowRank, self).__init__()  # noqa: UP008 (a class rebuilt from its source has no __class__ cell)
        self.down = torch.nn.Parameter(torch.randn(width, rank) * 0.1)
        self.up = torch.nn.Parameter(torch.zeros(rank, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.down @ self.up


@BOTH
def test_values_flow_between_the_traces_of_a_session(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        with model.session(**how):
            with model.trace("The sky is blue"):
                hidden = block.output[:, -1]
            with model.trace("The sky is grey"):
                block.output[:, -1] = hidden
                patched = model.lm_head.output.save()
        return patched

    same(run, repo_id)


@BOTH
def test_a_list_saved_in_a_session_collects_from_its_traces(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        blocks = layers(model)
        with model.session(**how):
            means = nnsight.save([])
            for i in range(len(blocks)):
                with model.trace(PROMPT):
                    means.append(blocks[i].output.mean())
            stacked = torch.stack(means).save()
        return [means, stacked]

    same(run, repo_id)


@BOTH
def test_shapes_are_scanned_in_a_session(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        with model.session(**how):
            with model.scan(PROMPT):
                shape = tuple(block.output.shape)
            told = list(shape).save()
        return told

    same(run, repo_id)


@BOTH
def test_a_session_generates_and_then_traces_what_it_generated(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.session(**how):
            with model.generate(PROMPT, max_new_tokens=3, do_sample=False) as tracer:
                ids = tracer.result.save()
            with model.trace(ids):
                logits = model.lm_head.output.save()
        return [ids, logits]

    same(run, repo_id)


@BOTH
def test_a_small_module_is_trained_in_a_session(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        block, width = layers(model)[0], model.config.hidden_size
        with model.session(**how):
            torch.manual_seed(0)
            addition = LowRank(width, 2)
            optimizer = torch.optim.AdamW(addition.parameters(), lr=0.1)
            losses = nnsight.save([])
            for _ in range(4):
                with model.trace(PROMPT):
                    block.output = block.output + addition(block.output)
                    loss = -model.lm_head.output[:, -1].log_softmax(-1)[:, 5].mean()
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            up, down = addition.up.detach().save(), addition.down.detach().save()
        return [losses, up, down]

    losses, up, _ = same(run, repo_id)
    assert losses[-1] < losses[0] and up.abs().max() > 0


@BOTH
def test_a_probe_is_trained_on_hidden_states(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block, width = layers(model)[1], model.config.hidden_size
        labels = torch.tensor([0, 1, 0, 1])
        with model.session(**how):
            torch.manual_seed(1)
            probe = torch.nn.Linear(width, 2)
            optimizer = torch.optim.SGD(probe.parameters(), lr=0.5)
            with model.trace(["cold", "warm", "cool", "hot"]):
                hidden = block.output[:, -1].detach()
            for _ in range(5):
                loss = torch.nn.functional.cross_entropy(probe(hidden), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            weight, last = probe.weight.detach().save(), loss.item().save()
        return [weight, last]

    same(run, repo_id)


@BOTH
def test_pandas_einops_and_sympy_work_in_a_session(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        words = embedding(model)
        with model.session(**how):
            import einops
            import pandas
            import sympy

            with model.trace(PROMPT):
                pooled = einops.reduce(words.output, "b s d -> b d", "mean")
            table = pandas.DataFrame({"norm": pooled.norm(dim=-1).tolist()}).save()
            total = float(table["norm"].sum()).save()
            root = str(sympy.sqrt(8)).save()
        return [table.to_dict(), total, root]

    assert same(run, repo_id)[2] == "2*sqrt(2)"
