"""Weight files of a checkpoint: which ones a loader reads, which are duplicates, and what a safetensors header says.

Knows folders, not caches; torch-free, and opens no pickle.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

MODEL_CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"

#: What holds tensors, or could: never served unless weights are, never fetched beside safetensors.
SUFFIXES = frozenset(
    {
        *(".safetensors", ".bin", ".pt", ".pth", ".pkl", ".pickle", ".joblib", ".ckpt", ".gguf", ".ggml", ".llamafile"),
        *(".h5", ".hdf5", ".keras", ".msgpack", ".pb", ".tflite", ".ot", ".mlmodel", ".onnx", ".onnx_data", ".engine"),
        *(".plan", ".dduf", ".npz", ".npy", ".zip", ".tar", ".gz", ".xz", ".zst", ".7z"),
    }
)

#: In the order in which transformers and peft look for them; an index comes right behind its single file.
_MODEL_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_MAX_HEADER_BYTES = 100 * 2**20

#: A copy of the same weights in another layout or precision: ``consolidated.*`` and ``model.fp16*.safetensors``.
_DUPLICATE = re.compile(r"consolidated|.*\.(?:fp16|bf16|fp32|non_ema)(?:[.-]|$)")


def is_weight(name: str) -> bool:
    """Whether a file of this name may hold weights."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def read_by_loader(folder: Path) -> tuple[str, list[str]] | None:
    """The kind of checkpoint in a folder ("model" or "adapter") and the weight files a loader reads.

    None when it has no config, or has not all of the weights that its index names.
    """
    for kind, config, names in (("model", MODEL_CONFIG, _MODEL_FILES), ("adapter", ADAPTER_CONFIG, _ADAPTER_FILES)):
        if not (folder / config).is_file():
            continue
        first = next((name for name in names if (folder / name).is_file()), None)
        if first is None:
            continue
        found = _indexed(folder / first) if first.endswith(".json") else [first]
        if found and all((folder / name).is_file() for name in found):
            return kind, found
    return None


def wanted(names: Iterable[str]) -> list[str]:
    """Of all files of a repository, those worth having: no hidden ones, no duplicates of the weights."""
    names = sorted(name for name in names if not any(part.startswith(".") for part in PurePosixPath(name).parts))
    weights = [name for name in names if is_weight(name) and "/" not in name and not _DUPLICATE.match(name)]
    safe = [name for name in weights if name.endswith(".safetensors")]
    pickled = [name for name in weights if re.match(r"(?:pytorch_model|adapter_model).*\.bin$", name)]
    keep = set(safe or pickled or weights)
    return [name for name in names if name in keep or not is_weight(name)]


def header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: an entry per tensor with ``dtype``, ``shape``, ``data_offsets``.

    Raises:
        ValueError: it is no safetensors file, or is cut short.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"{path.name} is not a safetensors file.")
        try:
            found = json.loads(file.read(length))
            tensors = {name: entry for name, entry in found.items() if name != "__metadata__"}
            end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            raise ValueError(f"{path.name} is not a safetensors file.") from None
    if size != 8 + length + end:
        raise ValueError(f"{path.name} is cut short: it has {size} bytes and should have {8 + length + end}.")
    return tensors


def parameter_counts(paths: Iterable[Path]) -> dict[str, int]:
    """How many values of each dtype these safetensors files hold.

    Raises:
        ValueError: one of them is no safetensors file.
    """
    counts: dict[str, int] = {}
    for path in paths:
        for entry in header(path).values():
            counts[entry["dtype"]] = counts.get(entry["dtype"], 0) + math.prod(entry["shape"])
    return counts


def _indexed(index: Path) -> list[str]:
    try:
        names = sorted({str(name) for name in json.loads(index.read_text())["weight_map"].values()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    # An index comes from whoever made the checkpoint: a name in it must not lead out of the folder.
    inside = (not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts for name in names)
    return names if all(inside) else []
