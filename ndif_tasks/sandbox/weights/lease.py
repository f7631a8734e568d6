"""A zygote's hold on weights that another process has: what it passes on to runners, each of which then maps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import arena
from . import layout as layouts

if TYPE_CHECKING:
    from ndif_tasks.sandbox.rehearsal import Rehearsal


@dataclass(frozen=True)
class Lease:
    """An arena that is there and not yet mapped, and where in it a model's tensors lie."""

    gpu: str
    layout: layouts.Layout
    descriptors: tuple[int, ...]
    transport: arena.Transport

    def enter(self, model: Any, rehearsal: Rehearsal) -> None:
        """Map the arena into this process, once, and have the model compute where it is. It may start threads.

        Raises:
            RuntimeError: the device cannot be used.
        """
        self.transport.begin(self.gpu)
        mapped = self.transport.attach(self.descriptors, self.layout.size_bytes)
        layouts.adopt(model._module, mapped, self.layout)
        model.pipeline.device = mapped.device
        rehearsal.move(mapped.device)

    def peak_bytes(self) -> int:
        """The most of the device that this process has taken at once, beside the weights."""
        return self.transport.peak_bytes()


def take(model: Any, gpu: str, fingerprint: str, descriptors: tuple[int, ...]) -> Lease:
    """Exchange a loaded model's own weights for a hold on those in an arena.

    Raises:
        ValueError: the arena is of another model than this process has made.
    """
    layout = layouts.of(model._module)
    if layout.fingerprint != fingerprint:
        raise ValueError("the weights on the GPU and the model around them came out different")
    layouts.strip(model._module, layout)
    return Lease(gpu, layout, descriptors, arena.transport())
