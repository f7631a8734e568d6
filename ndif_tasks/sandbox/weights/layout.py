"""Where each of a module's tensors lies in one flat arena, and how a module comes to use the arena's bytes as its own.

Pure torch: no device is touched but the one that a given tensor is on.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.utils import dlpack

from . import digest

#: What CUDA's own allocator gives: kernels may choose their way by it.
ALIGNMENT_BYTES = 512


class Place(NamedTuple):
    """One parameter or buffer: which block it is of, how far into it it begins, and its form, strides in elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    block: int
    offset_bytes: int


class Block(NamedTuple):
    """A stretch of the arena with a storage of its own: one tensor, or several that share bytes."""

    start_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Layout:
    """All places of a module; two processes that made the same module find the same layout."""

    size_bytes: int
    blocks: tuple[Block, ...]
    places: tuple[Place, ...]

    @property
    def fingerprint(self) -> str:
        """By which two processes know that they mean the same bytes."""
        text = json.dumps([self.size_bytes, self.blocks, self.places])
        return hashlib.sha256(text.encode()).hexdigest()


class _Span(NamedTuple):
    """A tensor's bytes in its storage, which is known by its address."""

    storage: int
    low: int
    high: int
    name: str
    tensor: torch.Tensor


def of(module: torch.nn.Module) -> Layout:
    """The layout of a module with its weights.

    Raises:
        ValueError: a tensor of it is no plain stretch of bytes.
    """
    blocks: list[Block] = []
    places: list[Place] = []
    end = 0
    for group in _groups(module):
        low, high = group[0].low, max(span.high for span in group)
        start = _round_up(end, ALIGNMENT_BYTES)
        end = start + high - low
        for span in group:
            form = str(span.tensor.dtype), tuple(span.tensor.shape), tuple(span.tensor.stride())
            places.append(Place(span.name, *form, len(blocks), span.low - low))
        blocks.append(Block(start, high - low))
    return Layout(_round_up(max(end, 1), digest.CHUNK_BYTES), tuple(blocks), tuple(places))


def sources(module: torch.nn.Module) -> list[torch.Tensor]:
    """The bytes of each block, where the module has them: one uint8 tensor a block, in the order of its layout."""
    found = []
    for group in _groups(module):
        widest = max((span.tensor.untyped_storage() for span in group), key=lambda storage: storage.nbytes())
        low, high = group[0].low, max(span.high for span in group)
        found.append(torch.empty(0, dtype=torch.uint8, device=widest.device).set_(widest, low, (high - low,)))
    return found


def stretch(layout: Layout, sources: Sequence[torch.Tensor], start: int, stop: int) -> torch.Tensor:
    """What an arena must hold from byte ``start`` to ``stop``: uint8, on the CPU; zero where no block is."""
    found = torch.zeros(stop - start, dtype=torch.uint8)
    first = bisect.bisect_right([block.start_bytes for block in layout.blocks], start) - 1
    for number in range(max(first, 0), len(layout.blocks)):
        block = layout.blocks[number]
        low, high = max(block.start_bytes, start), min(block.start_bytes + block.size_bytes, stop)
        if block.start_bytes >= stop:
            break
        if low < high:
            found[low - start : high - start] = sources[number][low - block.start_bytes : high - block.start_bytes]
    return found


def strip(module: torch.nn.Module, layout: Layout) -> None:
    """Take a module's weights away: each of its tensors is empty until :func:`adopt`, and still the same object."""
    tensors = _named(module)
    for place in layout.places:
        tensors[place.name].data = torch.empty(0, dtype=tensors[place.name].dtype)


def adopt(module: torch.nn.Module, arena: torch.Tensor, layout: Layout) -> None:
    """Let every parameter and buffer of a module be its place in an arena. What shared bytes shares them again.

    Args:
        module: made as the one of the layout was, with weights or stripped of them.
        arena: uint8, of the layout's size, on whatever device the module is to be.
    """
    blocks = [_alone(arena[start : start + size]) for start, size in layout.blocks]
    tensors = _named(module)
    for place in layout.places:
        dtype: torch.dtype = getattr(torch, place.dtype.removeprefix("torch."))
        # Only what is behind the offset: a view of another dtype must be a whole number of its elements.
        rest = blocks[place.block][place.offset_bytes :]
        whole = rest[: rest.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        tensors[place.name].data = whole.as_strided(place.shape, place.stride)
        tensors[place.name].requires_grad_(False)
    for name in tensors.keys() - {place.name for place in layout.places}:
        tensors[name].data = tensors[name].data.to(arena.device)


def _alone(piece: torch.Tensor) -> torch.Tensor:
    """The same bytes as a storage of their own: what is saved of a tensor is its storage, and not everybody's."""
    return dlpack.from_dlpack(dlpack.to_dlpack(piece))


def _named(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every distinct parameter and buffer by the first of its names."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _groups(module: torch.nn.Module) -> Iterator[list[_Span]]:
    """The tensors that share bytes, together, in the order of the first of their names."""
    names = {name: number for number, name in enumerate(_named(module))}
    spans = sorted(_span(name, tensor) for name, tensor in _named(module).items() if tensor.numel())
    groups: list[list[_Span]] = []
    for storage in (list(found) for _, found in itertools.groupby(spans, lambda span: span.storage)):
        end = -1
        for span in storage:
            if span.low >= end:
                groups.append([])
            groups[-1].append(span)
            end = max(end, span.high)
    return iter(sorted(groups, key=lambda group: min(names[span.name] for span in group)))


def _span(name: str, tensor: torch.Tensor) -> _Span:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.is_quantized or tensor.is_meta:
        raise ValueError(f"{name} is no plain tensor, and weights on a GPU must be.")
    last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    low = tensor.storage_offset() * tensor.element_size()
    high = low + (last + 1) * tensor.element_size()
    return _Span(tensor.untyped_storage().data_ptr(), low, high, name, tensor)


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
