"""Several prompts in one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .support import BOTH, embedding, layers

LONG, SHORT = "The quick brown fox jumps over the lazy dog", "Hello"


@BOTH
def test_prompts_of_unequal_length_get_their_own_rows(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        with model.trace(**how) as tracer:
            with tracer.invoke(LONG):
                first = model.lm_head.output.save()
            with tracer.invoke(SHORT):
                block.output[:] = 0
                second = model.lm_head.output.save()
            with tracer.invoke([SHORT, LONG]):
                both = model.lm_head.output[:, -1].save()
        return [first, second, both]

    same(run, repo_id)


@BOTH
def test_an_empty_invoke_sees_the_whole_batch(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.trace(**how) as tracer:
            with tracer.invoke(LONG):
                one = model.lm_head.output.save()
            with tracer.invoke(SHORT):
                other = model.lm_head.output.save()
            with tracer.invoke():
                mask = model.inputs[1]["attention_mask"].save()
                all_rows = model.lm_head.output.save()
        return [one, other, mask, all_rows]

    one, other, mask, all_rows = same(run, repo_id)
    assert torch.equal(torch.cat([one, other]), all_rows) and mask.shape[0] == 2


@BOTH
def test_a_barrier_lets_one_prompt_use_anothers_embeddings(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        words = embedding(model)
        with model.trace(**how) as tracer:
            barrier = tracer.barrier(2)
            with tracer.invoke("red green blue"):
                donated = words.output
                barrier()
                giver = model.lm_head.output.save()
            with tracer.invoke("red green blue"[::-1]):
                barrier()
                words.output = donated[:, -1:].expand_as(words.output)
                taker = model.lm_head.output.save()
        return [giver, taker]

    same(run, repo_id)


@BOTH
def test_a_cache_inside_an_invoke_holds_its_rows(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        with model.trace(**how) as tracer:
            with tracer.invoke(LONG):
                cache = tracer.cache(modules=[block])
            with tracer.invoke(SHORT):
                other = block.output.save()
        return [cache[block.path].output, other]

    same(run, repo_id)


@BOTH
def test_many_invokes_made_in_a_loop_come_back(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        prompts = ["one", "two words", "and three words"]
        with model.trace(**how) as tracer:
            found = nnsight.save({})
            for prompt in prompts:
                with tracer.invoke(prompt):
                    found[prompt] = model.lm_head.output[:, -1].argmax(-1)
        return dict(sorted(found.items()))

    assert len(same(run, repo_id)) == 3
