"""Token after token: steps, streams, sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import models

from .support import BOTH, layers

PROMPT = "The farm answers"


@BOTH
def test_steps_of_a_generation_are_read_and_edited(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        block = layers(model)[0]
        with model.generate(PROMPT, max_new_tokens=4, min_new_tokens=4, do_sample=False, **how) as tracer:
            hidden, tokens = nnsight.save([]), nnsight.save([])
            for step in tracer.iter[:4]:
                if step == 2:
                    block.output[:] = 0
                hidden.append(block.output)
                tokens.append(model.lm_head.output[0, -1].argmax(-1))
            ids = tracer.result.save()
        return [hidden, tokens, ids]

    assert len(same(run, repo_id)[0]) == 4


@BOTH
def test_all_steps_and_a_later_invoke_for_the_result(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        with model.generate(max_new_tokens=3, min_new_tokens=3, do_sample=False, **how) as tracer:
            with tracer.invoke(PROMPT):
                logits = nnsight.save([])
                for _ in tracer.all():
                    logits.append(model.lm_head.output[:, -1])
            with tracer.invoke():
                ids = tracer.result.save()
        return [logits, ids]

    with pytest.warns(UserWarning, match="never reached"):
        assert len(same(run, repo_id)[0]) == 3


@pytest.mark.parametrize("steps", [1, [0, 2], slice(1, 3)], ids=["one", "some", "a range"])
def test_chosen_steps_of_a_generation_are_read(same: Callable[..., Any], steps: Any) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        with model.generate(PROMPT, max_new_tokens=4, min_new_tokens=4, do_sample=False, **how) as tracer:
            logits = nnsight.save([])
            for _ in tracer.iter[steps]:
                logits.append(model.lm_head.output)
            ids = tracer.result.save()
        return [logits, ids]

    same(run, models.GPT2)


@BOTH
def test_the_streamer_gives_tokens_as_they_are_decoded(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        with model.generate(PROMPT, max_new_tokens=3, min_new_tokens=3, do_sample=False, **how) as tracer:
            steps = nnsight.save([])
            for _ in tracer.iter[:3]:
                steps.append(model.generator.streamer.output)
        return steps

    assert len(same(run, repo_id)) == 3


@BOTH
def test_a_cache_over_a_generation_has_an_entry_per_step(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[-1]
        with model.generate(PROMPT, max_new_tokens=3, min_new_tokens=3, do_sample=False, **how) as tracer:
            cache = tracer.cache(modules=[block])
            ids = tracer.result.save()
        return [cache[block.path].output, ids]

    assert len(same(run, repo_id)[0]) == 3


def test_a_stop_ends_a_generation_early(same: Callable[..., Any]) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        with model.generate(PROMPT, max_new_tokens=50, do_sample=False, **how) as tracer:
            picks = nnsight.save([])
            for _ in tracer.all():
                picks.append(model.lm_head.output[0, -1].argmax(-1))
                if len(picks) == 2:
                    tracer.stop()
        return picks

    assert len(same(run, models.GPT2)) == 2


@BOTH
def test_a_batch_of_prompts_is_generated_with_scores(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        settings = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True}
        with model.generate([PROMPT, "Hi"], max_new_tokens=3, min_new_tokens=3, **settings, **how) as tracer:
            sequences = tracer.result.sequences.save()
            scores = tracer.result.scores.save()
        return [sequences, scores]

    same(run, repo_id)


@BOTH
def test_sampling_from_a_seed_set_in_the_block_repeats(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.session(**how):
            torch.manual_seed(7)
            with model.generate(PROMPT, max_new_tokens=12, do_sample=True, top_k=50) as tracer:
                ids = tracer.result.save()
        return ids

    same(run, repo_id)


def test_unseeded_jobs_draw_differently(gpt2: Any) -> None:
    import random

    import numpy

    drawn = []
    for _ in range(2):
        with gpt2.generate(PROMPT, max_new_tokens=12, min_new_tokens=12, do_sample=True, remote=True) as tracer:
            noise = torch.rand(4).save()
            others = (random.random(), float(numpy.random.rand())).save()
            ids = tracer.result.save()
        drawn.append((ids, noise, others))
    (ids, noise, others), (ids_again, noise_again, others_again) = drawn
    assert not torch.equal(ids, ids_again) and not torch.equal(noise, noise_again)
    assert others[0] != others_again[0] and others[1] != others_again[1]
