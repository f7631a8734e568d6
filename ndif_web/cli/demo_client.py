"""What a researcher's script looks like: traces on the farm, beside the same traces run in this process.

nnsight and torch are imported in ``main`` alone, since the web tier never imports them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

PROMPT = "The Eiffel Tower is in the city of"


def layers(model: Any) -> Any:
    """The decoder layers, whatever the architecture calls them."""
    for path in ("transformer.h", "model.layers", "gpt_neox.layers"):
        found = model
        try:
            for name in path.split("."):
                found = getattr(found, name)
        except AttributeError:
            continue
        return found
    sys.exit("The demo does not know where this model keeps its layers.")


def look(model: Any, **how: Any) -> dict[str, Any]:
    """Save a hidden state and the logits."""
    middle = layers(model)[len(layers(model)) // 2]
    with model.trace(PROMPT, **how):
        hidden = middle.output.save()
        logits = model.lm_head.output.save()
    return {"hidden state": hidden, "logits": logits}


def edit(model: Any, **how: Any) -> dict[str, Any]:
    """Silence the first layer's output at the last token, and see what changes."""
    first = layers(model)[0]
    with model.trace(PROMPT, **how):
        first.output[:, -1] = 0
        logits = model.lm_head.output[:, -1].save()
    return {"logits after an edit": logits}


def generate(model: Any, **how: Any) -> dict[str, Any]:
    """Generate greedily."""
    with model.generate(PROMPT, max_new_tokens=8, do_sample=False, **how) as tracer:
        ids = tracer.result.save()
    return {"generated ids": ids}


def main() -> None:
    """Run each on the farm and here; exit 1 unless every value is the same."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repo", required=True)
    parser.add_argument("--weights", required=True)
    given = parser.parse_args()
    import nnsight
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    nnsight.CONFIG.APP.REMOTE_LOGGING = False
    status = nnsight.status(raw=True)["deployments"].values()
    served = next(entry for entry in status if entry["repo_id"] == given.repo and entry["dtype"])
    torch.set_num_threads(served["threads"])
    there = nnsight.TransformersModel(given.repo, task="text-generation")
    here = nnsight.TransformersModel(
        given.weights, task="text-generation", dispatch=True, dtype=getattr(torch, served["dtype"])
    )
    print(f"\n{given.repo}: {served['n_params'] / 1e6:.1f}M parameters, {served['dtype']}, {served['threads']} threads")
    print(f"{'value':<22}{'shape':<16}{'remote':<30}{'local':<30}{'same':<6}{'remote ms':>10}{'local ms':>10}")
    same = [_compare(run, there, here) for run in (look, edit, generate)]
    print(f"\nLast generation: {there.tokenizer.decode(generate(there, remote=True)['generated ids'][0])!r}")
    if not all(same):
        sys.exit("A remote value differs from the local one.")


def _compare(run: Callable[..., dict[str, Any]], there: Any, here: Any) -> bool:
    import torch

    run(there, remote=True), run(here)  # once each to warm up
    remote, remote_ms = _timed(run, there, remote=True)
    local, local_ms = _timed(run, here)
    for name, value in remote.items():
        equal = torch.equal(value, local[name])
        row = f"{name:<22}{'x'.join(map(str, value.shape)):<16}{_head(value):<30}{_head(local[name]):<30}"
        print(f"{row}{'yes' if equal else 'NO':<6}{remote_ms:>10.0f}{local_ms:>10.0f}")
    return all(torch.equal(value, local[name]) for name, value in remote.items())


def _timed(run: Callable[..., dict[str, Any]], model: Any, **how: Any) -> tuple[dict[str, Any], float]:
    started = time.perf_counter()
    values = run(model, **how)
    return values, (time.perf_counter() - started) * 1000


def _head(value: Any) -> str:
    last = value.flatten()[-3:].tolist()
    return " ".join(f"{number:.5g}" for number in last)


if __name__ == "__main__":
    main()
