"""Small models for tests: each made once per cache folder, by the farm's own maker in a subprocess."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ndif_models.snapshots import Held, import_folder

ROOT = Path(__file__).resolve().parent.parent

#: The names under which tests hold their models.
GPT2, LLAMA = "ndif-tests/tiny-gpt2", "ndif-tests/tiny-llama"
GPT2_LORA, LLAMA_LORA = f"{GPT2}-lora", f"{LLAMA}-lora"


def made_model(arch: str, size: str, cache_dir: Path) -> Path:
    """The folder of a made model; its LoRA adapter lies beside it (see :func:`made_lora`)."""
    place = cache_dir / f"{size}-{arch}"
    if not place.is_dir():
        _make(arch, size, place)
    return place


def made_lora(arch: str, size: str, cache_dir: Path) -> Path:
    """The folder of a LoRA adapter for a made model, which names ``ndif-tests/<size>-<arch>`` as its base."""
    return Path(f"{made_model(arch, size, cache_dir)}-lora")


def hold(arch: str, size: str, cache_dir: Path, hf_home: Path, repo_id: str | None = None) -> Held:
    """Make a model and import it with its adapter, as ``ndif-tests/<size>-<arch>`` and ``…-lora`` unless named."""
    name = repo_id or f"ndif-tests/{size}-{arch}"
    import_folder(made_lora(arch, size, cache_dir), f"{name}-lora", hf_home)
    return import_folder(made_model(arch, size, cache_dir), name, hf_home)


def _make(arch: str, size: str, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "ndif_tasks.replica.make_model", "--arch", arch, "--size", size, "--out", str(place)]
    argv += ["--lora", f"{place}-lora", "--base", f"ndif-tests/{size}-{arch}"]
    subprocess.run(
        argv, check=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
    )
