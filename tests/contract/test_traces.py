"""One forward pass: reads, edits, loops, operations, caches, early ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests import models

from .support import BOTH, attention, embedding, final_norm, head_projection, layers

PROMPT = "The farm answers"


@BOTH
def test_several_saves_of_outputs_inputs_and_results(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        blocks = layers(model)
        with model.trace(PROMPT, **how) as tracer:
            entering = blocks[1].input.save()
            args, _ = blocks[1].mlp.inputs
            mlp_in = args[0].save()
            leaving = blocks[1].output.save()
            logits = model.output.logits.save()
            result = tracer.result.logits.save()
        return [entering, mlp_in, leaving, logits, result]

    same(run, repo_id)


@BOTH
def test_an_edit_in_place_acts_on_what_follows(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        blocks = layers(model)
        with model.trace(PROMPT, **how):
            before = blocks[0].output.clone().save()
            blocks[0].output[:, -1] = 0
            after = blocks[0].output.save()
            logits = model.lm_head.output.save()
        return [before, after, logits]

    same(run, repo_id)


@BOTH
def test_an_edit_by_replacement_acts_on_what_follows(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        blocks, wte = layers(model), embedding(model)
        with model.trace(PROMPT, **how):
            wte.output = wte.output * 2
            blocks[1].input = blocks[1].input + 1
            args, kwargs = blocks[1].mlp.inputs
            blocks[1].mlp.inputs = ((args[0] * 0.5, *args[1:]), kwargs)
            logits = model.lm_head.output.save()
        return logits

    same(run, repo_id)


def test_an_element_of_a_tuple_output_is_edited(same: Callable[..., Any]) -> None:
    def run(model: Any, **how: Any) -> Any:
        attn = attention(model, 1)
        with model.trace(PROMPT, **how):
            whole = attn.output
            attn.output = (torch.zeros_like(whole[0]), *whole[1:])
            logits = model.lm_head.output.save()
        return logits

    same(run, models.GPT2)


@BOTH
def test_edited_copies_of_a_model_carry_their_edits(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.edit() as (_, edited):
            layers(edited)[0].output[:] = 0
        with edited.trace(PROMPT, **how):
            changed = model.lm_head.output.save()
        with model.trace(PROMPT, **how):
            clean = model.lm_head.output.save()
        assert not torch.equal(changed, clean)
        return [changed, clean]

    same(run, repo_id)


@BOTH
def test_a_module_attached_in_an_edit_in_place_travels(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        with model.edit(inplace=True):
            block.output = block.output * 3 + 1
        try:
            with model.trace(PROMPT, **how):
                logits = model.lm_head.output.save()
        finally:
            model.clear_edits()
        return logits

    same(run, repo_id)


@BOTH
def test_operations_inside_a_forward_are_read_and_edited(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        attn = attention(model, 0)
        with model.trace(PROMPT, **how):
            (_, query, *_), _ = attn.source.attention_interface_1.inputs
            query = query.save()
            per_head = attn.source.attention_interface_1.output
            edited = per_head[0].clone()
            edited[:, :, 1] = 0
            attn.source.attention_interface_1.output = (edited, *per_head[1:])
            read = edited.save()
            logits = model.lm_head.output.save()
        return [query, read, logits]

    same(run, repo_id)


def test_operations_of_a_called_function_are_read(same: Callable[..., Any]) -> None:
    def run(model: Any, **how: Any) -> Any:
        attn = model.transformer.h[0].attn
        with model.trace(PROMPT, **how):
            inner = attn.source.attention_interface_1.source.attn_output_transpose_0.output.save()
            logits = model.lm_head.output.save()
        return [inner, logits]

    same(run, models.GPT2)


@BOTH
def test_a_cache_gives_values_by_path_and_by_navigation(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        blocks = layers(model)
        with model.trace(PROMPT, **how) as tracer:
            cache = tracer.cache(modules=[blocks[0], blocks[1].mlp, "model.lm_head"], include_inputs=True)
            blocks[0].output[:] = 1
        cache._cache.model = model
        head = cache["model.lm_head"]
        return [cache[blocks[0].path].output, cache[blocks[1].mlp.path].input, cache.lm_head.output, head.output]

    same(run, repo_id)


@BOTH
def test_a_cache_of_every_module_holds_the_same_paths(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.trace(PROMPT, **how) as tracer:
            cache = tracer.cache()
        found = {path: cache[path].output for path in cache.keys() if path != "model"}  # noqa: SIM118
        return {path: value for path, value in found.items() if torch.is_tensor(value)}

    assert len(same(run, repo_id)) > 10


@BOTH
def test_a_stopped_trace_keeps_what_it_saved(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        blocks = layers(model)
        with model.trace(PROMPT, **how) as tracer:
            hidden = blocks[0].output.save()
            tracer.stop()
        return hidden

    same(run, repo_id)


@BOTH
def test_a_skipped_module_gives_the_value_it_was_told(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[1]
        with model.trace(PROMPT, **how):
            block.mlp.skip(block.mlp.input * 2)
            hidden = block.output.save()
            logits = model.lm_head.output.save()
        return [hidden, logits]

    same(run, repo_id)


@BOTH
def test_conditions_and_loops_decide_on_real_values(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        blocks = layers(model)
        with model.trace(PROMPT, **how):
            means = nnsight.save([])
            for block in blocks:
                if block.output.mean() > 0:
                    block.output[:] = block.output * 0.5
                else:
                    block.output[:] = block.output + 0.25
                means.append(block.output.mean().item())
            logits = model.lm_head.output.save()
        return [means, logits]

    same(run, repo_id)


@BOTH
def test_the_logit_lens_reads_every_layer(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        import nnsight

        blocks, norm = layers(model), final_norm(model)
        with model.trace(PROMPT, **how):
            lens = nnsight.save([])
            for block in blocks:
                lens.append(model.lm_head(norm(block.output)))
            real = model.output.logits.save()
        return [lens, real]

    lens, real = same(run, repo_id)
    assert torch.equal(lens[-1], real)


@BOTH
def test_a_single_attention_head_is_read_and_ablated(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        projection, width = head_projection(model, 1), attention(model, 1)._module.head_dim
        with model.trace(PROMPT, **how):
            heads = projection.input.unflatten(-1, (-1, width)).clone().save()
            projection.input[:, :, width : 2 * width] = 0
            logits = model.lm_head.output.save()
        return [heads, logits]

    same(run, repo_id)


@BOTH
def test_a_steering_vector_of_the_client_is_added(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        direction = torch.linspace(-1, 1, model.config.hidden_size)
        with model.trace(PROMPT, **how):
            block.output[:, -1] += direction.to(block.output.dtype)
            logits = model.lm_head.output.save()
        return logits

    same(run, repo_id)


@BOTH
def test_a_value_saved_by_one_trace_is_patched_into_the_next(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        block = layers(model)[0]
        with model.trace("The sky is blue", **how):
            hidden = block.output[:, -1].save()
        with model.trace("The sky is grey", **how):
            block.output[:, -1] = hidden
            patched = model.lm_head.output.save()
        return [hidden, patched]

    same(run, repo_id)


@BOTH
def test_ids_tensors_and_encodings_are_prompts_too(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        encoding = model.tokenizer(PROMPT, return_tensors="pt")
        got = []
        for prompt in (encoding.input_ids, encoding, encoding.input_ids[0].tolist(), [PROMPT, "Another"]):
            with model.trace(prompt, **how):
                logits = model.lm_head.output.save()
            got.append(logits)
        return got

    same(run, repo_id)


@BOTH
def test_a_pipeline_gives_its_records(same: Callable[..., Any], repo_id: str) -> None:
    def run(model: Any, **how: Any) -> Any:
        with model.pipe(PROMPT, max_new_tokens=4, do_sample=False, **how) as tracer:
            records = tracer.result.save()
        return records

    assert "generated_text" in same(run, repo_id)[0]
