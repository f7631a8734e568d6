"""One job of the farm's own, played the whole way through but for the model's forward pass: read, begun, packed.

What a process does for the first time (late imports, parsed sources, filled caches) the zygote has then done once,
where every fork would do it anew. A runner that waits plays it too: the pages it writes are then its own before a
client waits for them. That takes the same few milliseconds for every model.
"""

from __future__ import annotations

from typing import Any

import nnsight
import torch
from nnsight.schema.request import RequestModel
from nnsight.tracing.backend import Backend

from . import protocol, runner


class _Packed(Backend):
    """Packs a block where others would run or send it."""

    payload = b""

    def __call__(self, tracer: Any) -> None:
        self.payload = RequestModel.serialize(tracer, True)


class Rehearsal:
    """The job, packed once. A model without a tokenizer takes no text, and has nothing to rehearse."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._payload = b"" if model.tokenizer is None else _pack(model)

    def play(self) -> None:
        """Do what a runner does with it."""
        if self._payload:
            request = protocol.Request(compress=True, env={}, memory_bytes=0, bytes=len(self._payload))
            runner.result(self._model, request, bytearray(self._payload))


def _pack(model: Any) -> bytes:
    packed = _Packed()
    with model.trace("a", backend=packed) as tracer:
        model.input  # noqa: B018
        nnsight.save(torch.zeros(1))
        tracer.stop()
    return packed.payload
