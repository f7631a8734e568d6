"""A job of the farm's own, for what a process does for the first time: late imports, parsed sources, touched pages.

The zygote plays it once, where every fork would do it anew. A runner that waits plays it too: the pages it writes, and
the weights it maps, are then its own before a client waits for them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import nnsight
import torch
from nnsight.schema.request import RequestModel
from nnsight.tracing.backend import Backend
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._pytree import tree_map_only

from . import protocol, runner

TEXT = "a"


class _Packed(Backend):
    """Packs a block where others would run or send it."""

    payload = b""

    def __call__(self, tracer: Any) -> None:
        self.payload = RequestModel.serialize(tracer, True)


class _Interrupted(BaseException):
    """A request is there. A model's own code may catch every Exception."""


class Rehearsal:
    """The job, and the inputs of a forward pass, made once. A model that takes no text alone has none to rehearse."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._able = False
        if model.tokenizer is None:
            return
        try:
            self._payload = _pack(model)
            self._args, self._kwargs = _inputs(model)
            self._able = True
        except Exception as error:
            print(f"no job is rehearsed: {type(error).__name__}: {error}", file=sys.stderr)

    def play(self) -> None:
        """The whole way of a job but for the forward pass: read, begun, packed. A few milliseconds for any model."""
        if self._able:
            request = protocol.Request(compress=True, env={}, bytes=len(self._payload))
            runner.result(self._model, request, bytearray(self._payload))

    def move(self, device: torch.device) -> None:
        """Bring the inputs to where the model is from now on."""
        if self._able:
            inputs = (self._args, self._kwargs)
            self._args, self._kwargs = tree_map_only(torch.Tensor, lambda one: one.to(device), inputs)

    def forward(self, interrupted: Callable[[], bool]) -> None:
        """The forward pass of one token: it may take seconds of every thread, and ends before the next module when
        ``interrupted``."""
        if not self._able:
            return

        def look(*_: Any) -> None:
            if interrupted():
                raise _Interrupted

        with contextlib.suppress(_Interrupted), torch.no_grad(), register_module_forward_pre_hook(look):
            self._model._module(*self._args, **self._kwargs)


def _pack(model: Any) -> bytes:
    packed = _Packed()
    with model.trace(TEXT, backend=packed) as tracer:
        model.input  # noqa: B018
        nnsight.save(torch.zeros(1))
        tracer.stop()
    return packed.payload


def _inputs(model: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model's own module is called with for one token; runs it."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = model._module.register_forward_pre_hook(lambda _, *call: calls.append(call), with_kwargs=True)
    with hook, model.trace(TEXT):
        model.output.save()
    return calls[0]
