"""Whether the bytes of an arena are still what they were: two sums over each chunk, on whatever device it is on.

A sum multiplies each 32-bit word by an odd 64-bit number of its own, drawn at random by the holder, modulo 2**64. A
change within one word always shows, since an odd factor makes zero of nothing but zero. Any other change, a move of
bytes too, goes unseen by one sum with a chance of at most 2**-32, and by both of 2**-64, as long as whoever made it
does not know the numbers: with them a change that leaves both sums as they were is easily made. They never leave the
holder's process.
"""

from __future__ import annotations

import os

import torch

CHUNK_BYTES = 4 * 2**20
_WORDS = CHUNK_BYTES // 4
_SUMS = 2


def draw(device: torch.device) -> torch.Tensor:
    """Secret multipliers: int64, one row a sum, one column a word of a chunk."""
    drawn = torch.frombuffer(bytearray(os.urandom(_SUMS * _WORDS * 8)), dtype=torch.int64)
    return (drawn | 1).view(_SUMS, _WORDS).to(device)


def of(arena: torch.Tensor, multipliers: torch.Tensor) -> torch.Tensor:
    """The sums of every chunk: int64 on the arena's device, one row a chunk.

    Args:
        arena: uint8, a whole number of chunks.
        multipliers: of :func:`draw`, on the same device.
    """
    chunks = arena.view(torch.int32).view(-1, _WORDS)
    return torch.stack([_sums(chunk.long(), multipliers) for chunk in chunks])


def changed(before: torch.Tensor, now: torch.Tensor) -> list[int]:
    """The numbers of the chunks whose sums differ."""
    found: list[int] = (before != now).any(dim=1).nonzero().flatten().tolist()
    return found


def _sums(words: torch.Tensor, multipliers: torch.Tensor) -> torch.Tensor:
    # One row after the other: the products of both at once would take twice the memory.
    return torch.stack([(words * row).sum() for row in multipliers])
