"""Which memory a zygote gathers into huge pages, and that gathering changes none of it."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from ndif_tasks.sandbox import hugepages, kernel

MAPS = """\
55d0c0000000-55d0c0700000 rw-p 00000000 00:00 0                          [heap]
7f0000001000-7f0000401000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 rw-p 00000000 fe:00 42                         /models/model.safetensors
7f0002000000-7f0002400000 rw-s 00000000 00:00 0
7f0003000000-7f0003400000 r--p 00000000 00:00 0
7f0004001000-7f0004200000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00400000 rw-p 00000000 00:00 0                          [stack]
"""


def test_only_memory_of_the_process_itself_that_holds_a_whole_huge_page_is_gathered() -> None:
    found = list(hugepages.regions(hugepages.OWN, MAPS.splitlines()))
    assert found == [(0x55D0C0000000, 0x55D0C0700000), (0x7F0000001000, 0x7F0000401000)]


def test_what_a_file_is_mapped_into_is_told_from_it() -> None:
    assert list(hugepages.regions(hugepages.FILES, MAPS.splitlines())) == [(0x7F0001000000, 0x7F0001400000)]


def test_gathering_leaves_memory_as_it_was() -> None:
    memory = mmap.mmap(-1, 4 * hugepages.HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(range(256)) * (len(memory) // 256))
    hugepages.gather()
    memory.seek(0)
    assert memory.read() == bytes(range(256)) * (len(memory) // 256)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(range(256)) * (5 * hugepages.HUGE_PAGE_BYTES // 256) + b"end")
    return file


@pytest.fixture
def huge() -> None:
    """Only where the kernel gathers memory when asked."""
    memory = mmap.mmap(-1, 2 * hugepages.HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(len(memory)))
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    try:
        kernel.collapse(-(-start // hugepages.HUGE_PAGE_BYTES) * hugepages.HUGE_PAGE_BYTES, hugepages.HUGE_PAGE_BYTES)
    except OSError as error:
        pytest.skip(f"this kernel gathers no memory into huge pages: {error.strerror}")


def mapping_of(file: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(file))]


@pytest.mark.usefixtures("huge")
def test_a_mapped_file_becomes_memory_of_its_own_at_the_same_address(weights: Path) -> None:
    before = weights.read_bytes()
    with weights.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert mapping_of(weights)
    hugepages.gather()
    assert not mapping_of(weights)
    assert ctypes.addressof(ctypes.c_char.from_buffer(memory)) == address
    assert memory[:] == before
    memory[:3] = b"new"
    assert weights.read_bytes() == before


def test_a_file_stays_where_there_are_no_huge_pages(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError

    monkeypatch.setattr(hugepages.kernel, "collapse", refuse)
    with weights.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    hugepages.gather()
    assert mapping_of(weights)
    assert memory[:] == weights.read_bytes()
