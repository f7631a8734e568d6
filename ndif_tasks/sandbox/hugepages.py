"""Gathers a zygote's own memory into huge pages, so that forking it copies one entry where it copied 512.

Python with torch and nnsight holds some 70,000 small pages, and a fork, a runner's end and everything between pay for
each. A runner that writes still copies only the small page it writes to. Owns nothing; must not import torch.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from . import kernel

HUGE_PAGE_BYTES = 2**21
_OWN = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0\s*(?:\[heap\])?$")


def gather() -> None:
    """Do it now, once, for what is there. A kernel that cannot (before 6.1, or told not to) leaves all as it was."""
    with open("/proc/self/maps") as file:
        found = list(regions(file.read().splitlines()))
    for start, end in found:
        with contextlib.suppress(OSError):
            kernel.collapse(start, end - start)


def regions(maps: list[str]) -> Iterator[tuple[int, int]]:
    """The whole huge pages within writable memory that is no file's, from lines of ``/proc/<pid>/maps``."""
    for line in maps:
        if (match := _OWN.match(line)) is None:
            continue
        start = -(-int(match[1], 16) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        end = int(match[2], 16) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if start < end:
            yield start, end
