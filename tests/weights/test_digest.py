"""What the sums over an arena find: every changed bit, and bytes that moved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ndif_tasks.sandbox.weights import digest

CHUNKS = 3
SIZE = CHUNKS * digest.CHUNK_BYTES
MULTIPLIERS = digest.draw(torch.device("cpu"))
ARENA = torch.randint(0, 256, (SIZE,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
SUMS = digest.of(ARENA, MULTIPLIERS)


def found(arena: torch.Tensor) -> list[int]:
    return digest.changed(SUMS, digest.of(arena, MULTIPLIERS))


@settings(max_examples=25, deadline=None)
@given(place=st.integers(0, SIZE - 1), bit=st.integers(0, 7))
def test_one_flipped_bit_shows_in_its_chunk_and_in_no_other(place: int, bit: int) -> None:
    ARENA[place] ^= 1 << bit
    try:
        assert found(ARENA) == [place // digest.CHUNK_BYTES]
    finally:
        ARENA[place] ^= 1 << bit
    assert found(ARENA) == []


@pytest.mark.parametrize("word", [0, 1, 2**20 - 1])
def test_every_bit_of_a_word_shows_whatever_the_word_was(word: int) -> None:
    factors = MULTIPLIERS[:, word]
    for old in (0, 1, -1, -(2**31), 2**31 - 1):
        for bit in range(32):
            new = (old & 0xFFFFFFFF) ^ (1 << bit)
            new -= (new >> 31) << 32
            assert ((old * factors) != (new * factors)).all()


@pytest.mark.parametrize("distance", [4, 512, 4096, digest.CHUNK_BYTES])
def test_blocks_that_change_places_show(distance: int) -> None:
    moved = ARENA.clone()
    moved[:4], moved[distance : distance + 4] = ARENA[distance : distance + 4], ARENA[:4].clone()
    assert found(moved) == sorted({0, distance // digest.CHUNK_BYTES})


def test_chunks_set_to_one_value_all_show() -> None:
    assert found(torch.zeros_like(ARENA)) == [0, 1, 2]


def test_multipliers_are_odd_and_drawn_anew() -> None:
    assert (MULTIPLIERS % 2 != 0).all()
    assert not torch.equal(MULTIPLIERS, digest.draw(torch.device("cpu")))
