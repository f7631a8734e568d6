"""A GPU's stand-in for a machine without one: memory that really is shared, and everything around it as it ships.

``celery -A tests.weights.stand_in worker -Q NAME``; its holder and its zygote are this file too.
"""

from __future__ import annotations

import mmap
import os
import sys
from types import SimpleNamespace

import torch

from ndif_tasks.app import app as celery
from ndif_tasks.replica import holder_process, zygote_process
from ndif_tasks.sandbox import device, zygote
from ndif_tasks.sandbox.weights import arena, holder

__all__ = ["celery"]

TOTAL_BYTES, PEAK_BYTES = 2**30, 12345

holder_process.HOLDER = (__file__, "holder")
zygote_process.ZYGOTE = (__file__, "zygote")
device.has_cuda_build = lambda: True


class Memfd:
    """An arena in a file of memory."""

    def begin(self, gpu: str) -> None:
        """There is nothing to begin."""
        assert gpu == "0"

    def create(self, size_bytes: int) -> tuple[torch.Tensor, tuple[int, ...]]:
        """Make the file, and map it."""
        descriptor = os.memfd_create("weights")
        os.ftruncate(descriptor, size_bytes)
        return self._map(descriptor, size_bytes), (descriptor,)

    def attach(self, descriptors: tuple[int, ...], size_bytes: int) -> torch.Tensor:
        """Map the same file."""
        mapped = self._map(descriptors[0], size_bytes)
        os.close(descriptors[0])
        return mapped

    def total_bytes(self) -> int:
        """Of the device that there is not."""
        return TOTAL_BYTES

    def peak_bytes(self) -> int:
        """Any number, to be found again."""
        return PEAK_BYTES

    def _map(self, descriptor: int, size_bytes: int) -> torch.Tensor:
        return torch.frombuffer(mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED), dtype=torch.uint8)


def main() -> None:
    """A holder or a zygote, whose arenas are files of memory."""
    arena.transport = Memfd
    mains = SimpleNamespace(holder=holder.main, zygote=zygote.main)
    getattr(mains, sys.argv.pop(1))()


if __name__ == "__main__":
    main()
