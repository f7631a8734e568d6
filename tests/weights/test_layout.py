"""Where tensors lie in an arena, and that a module that takes them from there is the same module bit by bit."""

from __future__ import annotations

import pytest
import torch

from ndif_tasks.sandbox.weights import digest, layout


class Odd(torch.nn.Module):
    """One of everything: ties, views of one storage, strides, buffers, halves, a scalar, nothing at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = torch.nn.Linear(7, 5)
        self.tied = torch.nn.Linear(7, 5, bias=False)
        self.tied.weight = self.one.weight
        self.fp16 = torch.nn.Parameter(torch.randn(3, 5).half())
        self.bf16 = torch.nn.Parameter(torch.randn(9).bfloat16())
        self.turned = torch.nn.Parameter(torch.randn(4, 6).t())
        self.scalar = torch.nn.Parameter(torch.tensor(2.5))
        base = torch.randn(20)
        self.register_buffer("front", base[:12].view(3, 4))
        self.register_buffer("middle", base[8:16])
        self.register_buffer("back", base[16:])
        self.register_buffer("rows", torch.randn(4)[None].expand(6, 4), persistent=False)
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("empty", torch.empty(0, 3))


def filled(module: torch.nn.Module) -> tuple[torch.Tensor, layout.Layout]:
    found = layout.of(module)
    return layout.stretch(found, layout.sources(module), 0, found.size_bytes), found


def contents(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_a_module_in_an_arena_is_the_same_bit_by_bit() -> None:
    module = Odd()
    before, form = contents(module), {name: tensor.stride() for name, tensor in module.state_dict().items()}
    arena, found = filled(module)
    layout.strip(module, found)
    assert sum(parameter.numel() for parameter in module.parameters()) == 0
    layout.adopt(module, arena, found)
    after = contents(module)
    assert list(after) == list(before)
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype and torch.equal(after[name], tensor), name
    assert {name: tensor.stride() for name, tensor in module.state_dict().items()} == form
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_what_shared_bytes_shares_them_again_and_with_nobody_else() -> None:
    module = Odd()
    arena, found = filled(module)
    layout.adopt(module, arena, found)
    assert module.tied.weight is module.one.weight
    module.middle.fill_(7)
    assert module.front.flatten()[8:].eq(7).all() and not module.back.eq(7).any()
    module.rows[0] = 3
    assert module.rows.eq(3).all()
    assert module.one.weight.untyped_storage().nbytes() == module.one.weight.nbytes
    assert module.one.weight.data_ptr() != module.fp16.data_ptr()


def test_a_write_to_a_weight_is_a_write_to_the_arena() -> None:
    module = Odd()
    arena, found = filled(module)
    before = arena.clone()
    layout.adopt(module, arena, found)
    module.scalar.zero_()
    assert (arena != before).sum() == 2  # of 0x40200000, what is not zero


def test_blocks_are_aligned_and_an_arena_is_whole_chunks() -> None:
    found = layout.of(Odd())
    assert all(block.start_bytes % layout.ALIGNMENT_BYTES == 0 for block in found.blocks)
    assert found.size_bytes == digest.CHUNK_BYTES
    assert sum("one.weight" in place.name for place in found.places) == 1


def test_the_same_module_made_twice_has_the_same_layout_and_another_another() -> None:
    assert layout.of(Odd()).fingerprint == layout.of(Odd()).fingerprint
    assert layout.of(Odd()).fingerprint != layout.of(torch.nn.Linear(7, 5)).fingerprint


def test_any_stretch_is_a_part_of_the_whole() -> None:
    module = Odd()
    arena, found = filled(module)
    sources = layout.sources(module)
    for start, stop in ((0, 1), (3, 700), (511, 513), (1000, 5000), (found.size_bytes - 9, found.size_bytes)):
        assert torch.equal(layout.stretch(found, sources, start, stop), arena[start:stop])


def test_a_module_without_its_weights_has_no_layout() -> None:
    with pytest.raises(ValueError, match="weight is no plain tensor"):
        layout.of(torch.nn.Linear(2, 2, device="meta"))
