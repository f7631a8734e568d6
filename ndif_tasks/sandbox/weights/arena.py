"""One flat piece of memory that its holder makes and each runner maps: what it takes to share it, of whatever kind."""

from __future__ import annotations

from typing import Protocol

import torch


class Transport(Protocol):
    """How an arena is made in one process and mapped in another; writes of either are seen by both."""

    def begin(self, gpu: str) -> None:
        """Take the device into use in this process, for the first time. It may start threads.

        Args:
            gpu: as in ``CUDA_VISIBLE_DEVICES``.

        Raises:
            RuntimeError: it cannot be used; one sentence.
        """

    def create(self, size_bytes: int) -> tuple[torch.Tensor, tuple[int, ...]]:
        """A new arena: uint8 on the device, and the descriptors by which another process finds it.

        Raises:
            RuntimeError: there is no room, or the device cannot share.
        """

    def attach(self, descriptors: tuple[int, ...], size_bytes: int) -> torch.Tensor:
        """The arena of another process; closes the descriptors, and leaves the rest of the device to this one's jobs.

        Raises:
            RuntimeError: the device cannot map it.
        """

    def total_bytes(self) -> int:
        """The device's memory."""

    def peak_bytes(self) -> int:
        """The most that torch in this process has taken of the device at once, the arena not counted."""


def transport() -> Transport:
    """The one that this farm has."""
    from . import cuda

    return cuda.Cuda()
