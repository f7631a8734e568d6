"""What ``torch.save`` pickles results with: by value what only the client can import, and no storage beyond a view.

Classes the client shipped by value carry cloudpickle's tracker ids, by which they become its own classes again.
"""

from __future__ import annotations

from typing import Any

import cloudpickle
import torch
from cloudpickle.cloudpickle import dumps

__all__ = ["Pickler", "dumps"]


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, with two rules for tensors and modules."""

    def reducer_override(self, obj: Any) -> Any:
        """A small view of a big tensor travels alone; a model does not travel at all."""
        if type(obj) is torch.Tensor and _mostly_elsewhere(obj):
            return obj.detach().clone().requires_grad_(obj.requires_grad).__reduce_ex__(4)
        if type(obj).__module__.startswith("nnsight.") and hasattr(obj, "_persistent_id"):
            raise TypeError("a part of the model was saved; save its output or a tensor of it instead")
        return super().reducer_override(obj)


def _mostly_elsewhere(tensor: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return False
    return bool(tensor.untyped_storage().nbytes() > 2 * tensor.numel() * tensor.element_size() + 1024)
