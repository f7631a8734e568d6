"""Loading the model a zygote holds, with stock nnsight, and telling what was loaded."""

from __future__ import annotations

import json
from typing import Any

#: A configuration that lists thousands of labels helps nobody in ``/status``.
MAX_CONFIG_CHARS = 32_000


def load(model_key: str, dtype: str | None) -> Any:
    """Load a model with its weights, from the local cache only.

    Args:
        model_key: nnsight's key, ``import.path.Class:{json}``.
        dtype: a torch dtype's name, or None for the checkpoint's own.
    """
    # The imports that nothing here needs would be made anew by every fork: those of adapters take a second.
    import nnsight  # noqa: F401
    import peft  # noqa: F401
    import torch
    import tqdm
    import transformers
    from nnsight.modeling.mixins.remotable import Remotable

    transformers.logging.disable_progress_bar()
    tqdm.tqdm.monitor_interval = 0  # its monitor is a thread
    torch.set_num_threads(1)
    kwargs = {"dtype": dtype} if dtype else {}
    model = Remotable.from_model_key(model_key, dispatch=True, **kwargs)
    model._module.eval()
    model._module.requires_grad_(False)
    return model


def facts(model: Any) -> dict[str, Any]:
    """What people and ``meta`` are told of a loaded model; sizes in bytes."""
    module = model._module
    parameters = list(module.parameters())
    tensors = parameters + list(module.buffers())
    config = _plain(module.config.to_dict())
    return {
        "dtype": str(module.dtype).removeprefix("torch."),
        "n_params": sum(p.numel() for p in parameters),
        "size_bytes": sum(t.numel() * t.element_size() for t in tensors),
        "config": config if len(json.dumps(config)) <= MAX_CONFIG_CHARS else None,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
