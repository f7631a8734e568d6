"""How much memory there is for a model and for each of its jobs. Pure, but for reading what the kernel tells.

Where there are no huge pages, weights are mapped files, which the kernel counts as available memory while nobody writes
them. A job that writes all of them makes a private copy of each, which no limit on its address space sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Memory:
    """A machine's memory."""

    total_bytes: int
    available_bytes: int
    mapped_bytes: int

    @property
    def free_bytes(self) -> int:
        """What can be taken without pushing out pages that processes have mapped, such as other models' weights."""
        return max(0, self.available_bytes - self.mapped_bytes)


def read(meminfo: str) -> Memory:
    """What a kernel's ``/proc/meminfo`` says."""
    lines = (line.partition(":") for line in meminfo.splitlines())
    kib = {name: int(value.split()[0]) for name, _, value in lines}
    return Memory(kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024, kib["Mapped"] * 1024)


def now() -> Memory:
    """This machine's, at this moment."""
    return read(MEMINFO.read_text())


def refusal(name: str, weight_bytes: int, room_to_train: bool, memory: Memory) -> str | None:
    """Why a model does not fit, in one sentence; None when it does."""
    needed, free = weight_bytes * (2 if room_to_train else 1), memory.free_bytes
    if needed <= free:
        return None
    what = "a copy for a job that writes them included (NDIF_ROOM_TO_TRAIN)" if room_to_train else "no copy included"
    return f"The weights of {name} take {needed >> 20} MiB of memory, {what}, and {free >> 20} MiB are free."


def job_bytes(beside: int, memory: Memory) -> int:
    """What a job may allocate when no setting says so.

    That is what is free, less what it may take ``beside`` that (its files, and the copy that it makes when it writes
    every weight), less a tenth of the machine for everybody else; but never less than a twentieth.
    """
    spare = memory.free_bytes - beside - memory.total_bytes // 10
    return max(spare, memory.total_bytes // 20)
