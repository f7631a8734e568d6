"""Which memory a zygote gathers into huge pages, and that gathering changes none of it."""

from __future__ import annotations

import mmap

from ndif_tasks.sandbox import hugepages

MAPS = """\
55d0c0000000-55d0c0700000 rw-p 00000000 00:00 0                          [heap]
7f0000001000-7f0000401000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 rw-p 00000000 fe:00 42                         /models/model.safetensors
7f0002000000-7f0002400000 rw-s 00000000 00:00 0
7f0003000000-7f0003400000 r--p 00000000 00:00 0
7f0004001000-7f0004200000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00400000 rw-p 00000000 00:00 0                          [stack]
"""


def test_only_whole_huge_pages_of_the_process_itself_are_gathered() -> None:
    found = list(hugepages.regions(MAPS.splitlines()))
    assert found == [(0x55D0C0000000, 0x55D0C0600000), (0x7F0000200000, 0x7F0000400000)]


def test_gathering_leaves_memory_as_it_was() -> None:
    memory = mmap.mmap(-1, 4 * hugepages.HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(range(256)) * (len(memory) // 256))
    hugepages.gather()
    memory.seek(0)
    assert memory.read() == bytes(range(256)) * (len(memory) // 256)
