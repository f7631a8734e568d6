"""Hints where a farm differs from a local run: what a block changes outside itself, and weights without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .protocol import Request

Snapshot = dict[str, tuple[Any, Any]]

#: What a limit looks like from within, and what it is.
_LIMITS = {
    "MemoryError": "beside the weights a job may take {memory_bytes} bytes of memory",
    "can't allocate memory": "beside the weights a job may take {memory_bytes} bytes of memory",
    "can't start new thread": "a job may have {threads} threads",
    "Too many open files": "a job may have {open_files} files open",
    "No space left on device": "a job's /tmp holds {scratch_bytes} bytes",
}
_NO_GRADIENT = ("does not require grad", "doesn't require gradient")


def snapshot(frame: Any) -> Snapshot:
    """The mutable values a block was shipped with, and how each looks before it runs."""
    shipped = {**frame.f_globals, **frame.f_locals}
    return {name: (value, look) for name, value in shipped.items() if (look := _look(value)) is not None}


def changed(before: Snapshot, saved: set[int]) -> Iterator[str]:
    """One hint for each value the block changed and did not save."""
    for name, (value, look) in before.items():
        if id(value) not in saved and _look(value) != look:
            yield (
                f"hint: `{name}` was made outside the block and changed inside it; only the farm's copy changed. "
                f"Save it in the block to get it back: {name} = nnsight.save({name})"
            )


def after(error: BaseException, request: Request) -> str:
    """A last line for an error that means something else here than in a local run, or nothing."""
    text = f"{type(error).__name__}: {error}"
    for words, limit in _LIMITS.items():
        if words in text:
            return f"hint: {limit.format(**request.model_dump())} here.\n"
    if any(words in str(error) for words in _NO_GRADIENT):
        return (
            "hint: the farm's weights take no gradients, so an activation is opted in where it is read, before what "
            "follows it: hidden = model.….output.requires_grad_(True)\n"
        )
    return ""


def _look(value: Any) -> Any:
    if type(value) is list:
        return [id(item) for item in value]
    if type(value) is dict:
        return [(id(key), id(item)) for key, item in value.items()]
    if type(value) is set:
        return {id(item) for item in value}
    return getattr(value, "_version", None) if type(value).__name__ == "Tensor" else None
