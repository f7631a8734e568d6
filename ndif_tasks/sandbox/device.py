"""What a runner on a GPU reaches that one on the CPU does not, as data for the walls. Must not import torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"

_NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/*")
_PLACES = ("/sys/bus/pci/devices", "/sys/devices/pci*", "/sys/module/nvidia*")
_OF_PROC = ("/proc/driver/nvidia", "/proc/devices")
_CALLS = ("get_mempolicy", "set_mempolicy", "mbind", "memfd_create")
#: A mask and what must be left of a request's number: NVIDIA's letter; the small numbers of its unified memory, and the
#: two with which that begins and ends.
_IOCTLS = ((0xFF00, 0x4600), (0xFFFFFF00, 0), (0xFFFFFFFF, 0x30000001), (0xFFFFFFFF, 0x30000002))


@dataclass(frozen=True)
class Device:
    """What the walls let through for a kind of device; the least of it is nothing.

    Attributes:
        nodes: device files that may be read, written and mapped, and that take ``ioctl``.
        places: what may be read in the house, beside what every job may.
        of_proc: what may be read of ``/proc``, which each house has anyway.
        calls: system calls, beside those of every job.
        ioctls: for each allowed kind of request a mask and what the masked number must be.
    """

    nodes: tuple[Path, ...] = ()
    places: tuple[Path, ...] = ()
    of_proc: tuple[Path, ...] = ()
    calls: tuple[str, ...] = ()
    ioctls: tuple[tuple[int, int], ...] = ()


#: Of a deployment on the CPU.
NONE = Device()


def of(gpu: str | None, root: Path = Path("/")) -> Device:
    """What there is on this machine for a deployment on a GPU; nothing for one on the CPU.

    Args:
        gpu: as in ``CUDA_VISIBLE_DEVICES``; None for the CPU.
        root: where the machine's files are.
    """
    if gpu is None:
        return NONE
    return Device(
        nodes=_found(root / "dev", _NODES),
        places=_found(root, [place[1:] for place in _PLACES]),
        of_proc=_found(root, [place[1:] for place in _OF_PROC]),
        calls=_CALLS,
        ioctls=_IOCTLS,
    )


def chosen(environ: Mapping[str, str]) -> str | None:
    """The GPU that a replica was given, as in ``CUDA_VISIBLE_DEVICES``; None where it runs on the CPU."""
    return environ.get(VARIABLE, "").strip() or None if has_cuda_build() else None


def has_cuda_build() -> bool:
    """Whether the installed torch is one for CUDA, told without importing it."""
    spec = importlib.util.find_spec("torch")
    return spec is not None and any((Path(spec.origin or "/").parent / "lib").glob("libtorch_cuda.so*"))


def _found(root: Path, patterns: tuple[str, ...] | list[str]) -> tuple[Path, ...]:
    return tuple(sorted(place for pattern in patterns for place in root.glob(pattern)))
