"""Makes small models from nothing: a tokenizer trained on what every Python ships, and seeded random weights.

Owns the shapes of the made models. For tests, benchmarks and demonstrations on machines that cannot reach a Hub:
``python -m ndif_tasks.replica.make_model --arch gpt2 --out FOLDER``. It writes a checkpoint's files itself and must not
import torch or transformers, whose import takes ten times as long as making a model does.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ARCHS = ("gpt2", "llama")
SIZES = ("tiny", "small", "124m")
SEED = 0

#: Of each architecture: the token that begins a text and the one that ends it.
SPECIAL = {"gpt2": ("<|endoftext|>", "<|endoftext|>"), "llama": ("<|begin_of_text|>", "<|end_of_text|>")}

#: Modules of the standard library whose text trains the tokenizer: long, old, prose and plain code.
_TEXTS = "argparse difflib doctest inspect logging/__init__ optparse pydoc statistics tarfile textwrap turtle typing"

_VOCAB = {"tiny": 1024, "small": 4096, "124m": 8192}

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

#: (name, shape) of a tensor; the name decides how :func:`_write_weights` fills it.
Tensor = tuple[str, tuple[int, ...]]


def make(arch: str, out: Path, size: str = "tiny", seed: int = SEED) -> Path:
    """Make a model folder that stock transformers loads: config, weights, tokenizer, generation config.

    The same arguments give the same bytes on the same Python.
    """
    tokenizer = _trained_tokenizer(arch, _VOCAB[size])
    begin, end = (tokenizer.token_to_id(token) for token in SPECIAL[arch])
    ids = {"bos_token_id": begin, "eos_token_id": end}
    shape = _gpt2_config if arch == "gpt2" else _llama_config
    config = shape(size, tokenizer.get_vocab_size()) | ids | {"dtype": "float32"}
    out.mkdir(parents=True, exist_ok=True)
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", ids | {"pad_token_id": end})
    _write_tokenizer(out, tokenizer, arch, config.get("n_positions") or config["max_position_embeddings"])
    tensors = _gpt2_tensors(config) if arch == "gpt2" else _llama_tensors(config)
    _write_weights(out / "model.safetensors", tensors, config["initializer_range"], seed)
    return out


def make_lora(model_folder: Path, base: str, out: Path, seed: int = SEED, rank: int = 4) -> Path:
    """Make a LoRA adapter for a made model, with weights that change its outputs.

    Args:
        base: the repo id that the adapter names as its base model.
    """
    config = json.loads((model_folder / "config.json").read_text())
    targets = ["c_attn"] if config["model_type"] == "gpt2" else ["q_proj", "v_proj"]
    out.mkdir(parents=True, exist_ok=True)
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": 4 * rank,
        "lora_dropout": 0.0,
        "target_modules": targets,
        "fan_in_fan_out": config["model_type"] == "gpt2",
        "bias": "none",
        "inference_mode": True,
    }
    _write_json(out / "adapter_config.json", adapter)
    _write_weights(out / "adapter_model.safetensors", _lora_tensors(config, rank), 0.1, seed)
    return out


def _gpt2_config(size: str, vocab_size: int) -> dict[str, Any]:
    names = ("n_positions", "n_embd", "n_layer", "n_head")
    numbers = {"tiny": (256, 48, 3, 4), "small": (512, 256, 6, 8), "124m": (1024, 768, 12, 12)}[size]
    return dict(zip(names, numbers, strict=True)) | {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        # The largest is GPT-2 small to the tensor, so its vocabulary is padded past the tokenizer's.
        "vocab_size": 50257 if size == "124m" else vocab_size,
        "initializer_range": _spread(size),
    }


def _llama_config(size: str, vocab_size: int) -> dict[str, Any]:
    names = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
    numbers = {"tiny": (64, 160, 2, 4, 2), "small": (256, 704, 6, 8, 2), "124m": (768, 2560, 14, 12, 4)}[size]
    return dict(zip(names, numbers, strict=True)) | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab_size,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "initializer_range": _spread(size),
    }


def _spread(size: str) -> float:
    # Wider than usual where layers are few and narrow: with 0.02 their outputs would hardly depend on the input.
    return 0.02 if size == "124m" else 0.1


def _gpt2_tensors(config: dict[str, Any]) -> Iterator[Tensor]:
    width = config["n_embd"]
    yield "transformer.wte.weight", (config["vocab_size"], width)
    yield "transformer.wpe.weight", (config["n_positions"], width)
    for layer in range(config["n_layer"]):
        block = f"transformer.h.{layer}"
        linear = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
        linear |= {"mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width)}
        for name, shape in linear.items():
            yield f"{block}.{name}.weight", shape
            yield f"{block}.{name}.bias", shape[1:]
        for norm in ("ln_1", "ln_2"):
            yield f"{block}.{norm}.weight", (width,)
            yield f"{block}.{norm}.bias", (width,)
    yield "transformer.ln_f.weight", (width,)
    yield "transformer.ln_f.bias", (width,)


def _llama_tensors(config: dict[str, Any]) -> Iterator[Tensor]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    shared = width // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        for name, rows in (("q", width), ("k", shared), ("v", shared), ("o", width)):
            yield f"{block}.self_attn.{name}_proj.weight", (rows, width)
        yield f"{block}.mlp.gate_proj.weight", (inner, width)
        yield f"{block}.mlp.up_proj.weight", (inner, width)
        yield f"{block}.mlp.down_proj.weight", (width, inner)
        yield f"{block}.input_layernorm.weight", (width,)
        yield f"{block}.post_attention_layernorm.weight", (width,)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (config["vocab_size"], width)


def _lora_tensors(config: dict[str, Any], rank: int) -> Iterator[Tensor]:
    if config["model_type"] == "gpt2":
        targets = [(name, (shape[1], shape[0])) for name, shape in _gpt2_tensors(config) if "c_attn.weight" in name]
    else:
        wanted = ("q_proj.weight", "v_proj.weight")
        targets = [(name, (shape[0], shape[1])) for name, shape in _llama_tensors(config) if name.endswith(wanted)]
    for name, (rows, columns) in targets:
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        yield f"{stem}.lora_A.weight", (rank, columns)
        yield f"{stem}.lora_B.weight", (rows, rank)


def _write_weights(path: Path, tensors: Iterator[Tensor], spread: float, seed: int) -> None:
    import numpy
    from safetensors.numpy import save_file

    generator = numpy.random.default_rng(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Any:
        if name.endswith("bias"):
            return numpy.zeros(shape, numpy.float32)
        if len(shape) == 1:  # the scale of a normalisation
            return numpy.ones(shape, numpy.float32)
        values = generator.standard_normal(shape, dtype=numpy.float32)
        values *= spread
        return values

    save_file({name: draw(name, shape) for name, shape in tensors}, path, metadata={"format": "pt"})


def _trained_tokenizer(arch: str, vocab_size: int) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    begin, end = SPECIAL[arch]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dict.fromkeys((begin, end))),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_text(), trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if arch == "llama":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A",
            pair=f"{begin} $A {begin} $B",
            special_tokens=[(begin, tokenizer.token_to_id(begin))],
        )
    return tokenizer


def _training_text() -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    found = [library / f"{name}.py" for name in _TEXTS.split()]
    return [path.read_text(encoding="utf-8") for path in found if path.is_file()]


def _write_tokenizer(out: Path, tokenizer: Tokenizer, arch: str, max_length: int) -> None:
    begin, end = SPECIAL[arch]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length}
    config |= {"bos_token": begin, "eos_token": end, "clean_up_tokenization_spaces": False}
    if arch == "llama":
        config["chat_template"] = _CHAT_TEMPLATE
    tokenizer.save(str(out / "tokenizer.json"))
    _write_json(out / "tokenizer_config.json", config)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Make what the command line asks for, and print where it is as JSON."""
    parser = argparse.ArgumentParser(prog="make_model", description="Make a small model with random weights.")
    parser.add_argument("--arch", choices=ARCHS, default="gpt2")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--out", type=Path, required=True, help="the model's folder; made unless it is there")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--lora", type=Path, help="also make a LoRA adapter in this folder")
    parser.add_argument("--base", help="ORG/NAME that the adapter names as its base; the model's folder unless given")
    given = parser.parse_args(argv)
    made = {"model": str(make(given.arch, given.out, given.size, given.seed))}
    if given.lora:
        made["lora"] = str(make_lora(given.out, given.base or str(given.out), given.lora, given.seed))
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
