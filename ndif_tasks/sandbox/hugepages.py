"""Keeps a zygote's memory in huge pages, so that a fork copies one entry where it copied 512 and a runner meets none.

Python with torch and nnsight holds some 70,000 small pages, a model's files 250 for each MiB of weights; a fork, a
runner's first look at each and its end all pay for them. A runner that writes still copies only the small page it
writes to. Owns nothing; must not import torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator

from . import kernel

HUGE_PAGE_BYTES = 2**21
#: Memory of no file, and of a file; writable both.
OWN = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0\s*(?:\[heap\])?$")
FILES = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ [1-9]\d*\s+/.*$")


def gather() -> None:
    """Do it now, once, for what is there. A kernel that cannot (before 6.1, or told not to) leaves all as it was.

    Files that are mapped to be written, as weights are, become memory of the process's own, at the addresses where they
    are: nothing that points to them changes, nor how it is aligned.
    """
    with open("/proc/self/maps") as file:
        maps = file.read().splitlines()
    for start, end in regions(FILES, maps):
        with contextlib.suppress(OSError):
            _detach(start, end)
    for start, end in regions(OWN, maps):
        with contextlib.suppress(OSError):
            low, high = _whole(start, end)
            kernel.collapse(low, high - low)


def regions(kind: re.Pattern[str], maps: list[str]) -> Iterator[tuple[int, int]]:
    """Writable memory that is no other process's and holds a whole huge page, from lines of ``/proc/<pid>/maps``."""
    for line in maps:
        if (match := kind.match(line)) is not None:
            start, end = int(match[1], 16), int(match[2], 16)
            low, high = _whole(start, end)
            if low < high:
                yield start, end


def _whole(start: int, end: int) -> tuple[int, int]:
    return -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES


def _detach(start: int, end: int) -> None:
    """Put memory of the process's own with the same bytes in the place of a file's.

    Raises:
        OSError: there is no room, or there are no huge pages; the file stays.
    """
    size = end - start
    copy = _room(size, start % HUGE_PAGE_BYTES)
    try:
        kernel.advise_huge(copy, size)
        ctypes.memmove(copy, start, size)
        low, high = _whole(copy, copy + size)
        kernel.collapse(low, high - low)
        kernel.move(copy, start, size)
    except OSError:
        kernel.free(copy, size)
        raise


def _room(size: int, into_page: int) -> int:
    """New memory that begins so far into a huge page: pages move whole only to where they could be."""
    room = kernel.allocate(size + HUGE_PAGE_BYTES)
    copy = room + (into_page - room) % HUGE_PAGE_BYTES
    for start, end in ((room, copy), (copy + size, room + size + HUGE_PAGE_BYTES)):
        if start < end:
            kernel.free(start, end - start)
    return copy
