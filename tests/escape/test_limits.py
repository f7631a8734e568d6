"""A farm whose policy is strict with developers: each limit is told in a sentence, and costs its own job only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import blocks, models
from tests.farm import Farm, serving
from tests.sender import Block, Sender, record

POLICY = """
tags:
  developer:
    memory_bytes: 2147483648
    cpu_s: 2
    wall_s: 12
    threads: 40
    open_files: 64
    scratch_bytes: 1048576
    output_lines: 10
    result_bytes: 200000
    modules: [torch, time, threading, itertools]
"""


@pytest.fixture(scope="module")
def strict(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A running farm with that policy, which serves the tiny GPT-2."""
    home = tmp_path_factory.mktemp("strict")
    (home / "policy.yaml").write_text(POLICY)
    running = Farm(home, {"NDIF_SANDBOX_POLICY": str(home / "policy.yaml")})
    models.hold("gpt2", "tiny", made, running.hf_home)
    with serving(running, models.GPT2) as served:
        yield served


@pytest.fixture
def told(strict: Farm, remote_model: Callable[[str], Any]) -> Callable[[Block], tuple[str, dict[str, Any]]]:
    """What the caller of a failing block is told, and the record of what it cost."""

    def send(block: Block) -> tuple[str, dict[str, Any]]:
        model = remote_model(models.GPT2)
        sender = Sender(strict.url, model.to_model_key(), record(model, block))
        last = sender.wait_for(sender.submit(), "ERROR")
        return str(last["description"]), dict(last["meta"])

    return send


@pytest.fixture(autouse=True)
def next_job_works(strict: Farm, remote_model: Callable[[str], Any]) -> Iterator[None]:
    """After each of these jobs the farm serves the next one."""
    yield
    model = remote_model(models.GPT2)
    sender = Sender(strict.url, model.to_model_key(), record(model, blocks.good))
    done = sender.wait_for(sender.submit(), "COMPLETED")
    meta = done["meta"]
    assert (meta["policy"], meta["ended"]) == ("developer", "values")
    assert {"namespaces", "privileges", "landlock", "seccomp", "limits"} <= set(meta["walls"])


def test_processor_time(told: Callable[[Block], tuple[str, dict[str, Any]]]) -> None:
    sentence, meta = told(blocks.endless)
    assert sentence.startswith("The block used more processor time than a job may (2 s).")
    assert meta["ended"] == "cpu time" and meta["cpu_s"] >= 2


def test_wall_time(told: Callable[[Block], tuple[str, dict[str, Any]]]) -> None:
    def block(model: Any, backend: Any) -> None:
        with model.trace("a", backend=backend):
            import time

            time.sleep(60)

    sentence, meta = told(block)
    assert sentence == "The block ran longer than a job may (12 s)."
    assert meta["ended"] == "timeout"


def test_threads(told: Callable[[Block], tuple[str, dict[str, Any]]]) -> None:
    def block(model: Any, backend: Any) -> None:
        with model.trace("a", backend=backend):
            import threading
            import time

            for _ in range(60):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

    sentence, meta = told(block)
    assert "RuntimeError: can't start new thread" in sentence
    assert meta["ended"] == "error"


def test_memory(told: Callable[[Block], tuple[str, dict[str, Any]]]) -> None:
    def block(model: Any, backend: Any) -> None:
        with model.trace("a", backend=backend):
            len(bytes(3 * 2**30)).save()  # type: ignore[attr-defined]

    sentence = told(block)[0]
    assert "MemoryError" in sentence
    assert sentence.endswith("hint: beside the weights a job may take 2147483648 bytes of memory here.\n")


def test_open_files(told: Callable[[Block], tuple[str, dict[str, Any]]]) -> None:
    def block(model: Any, backend: Any) -> None:
        with model.trace("a", backend=backend):
            held = [open("/dev/null") for _ in range(100)]  # noqa: SIM115
            held.clear()

    assert "Too many open files" in told(block)[0]


def test_scratch(told: Callable[[Block], tuple[str, dict[str, Any]]]) -> None:
    def block(model: Any, backend: Any) -> None:
        with model.trace("a", backend=backend):
            with open("/tmp/mine", "wb", buffering=0) as file:
                for _ in range(4):
                    file.write(bytes(2**19))
            with open("/tmp/another", "wb", buffering=0) as file:
                file.write(bytes(2**19))

    sentence = told(block)[0]
    assert "No space left on device" in sentence and "hint: a job's /tmp holds 1048576 bytes" in sentence


def test_lines(told: Callable[[Block], tuple[str, dict[str, Any]]]) -> None:
    def block(model: Any, backend: Any) -> None:
        with model.trace("a", backend=backend):
            for _ in range(11):
                print("again")

    sentence, meta = told(block)
    assert sentence.startswith("The block printed more than a job may (10 lines or 1048576 bytes).")
    assert meta["ended"] == "output"


def test_values(told: Callable[[Block], tuple[str, dict[str, Any]]]) -> None:
    def block(model: Any, backend: Any) -> None:
        with model.trace("a", backend=backend):
            import torch

            noise = torch.rand(100_000).save()  # type: ignore[attr-defined]  # noqa: F841

    sentence, meta = told(block)
    assert "and may take 200000; save less, or reduce first." in sentence
    assert meta["ended"] == "refused"


def test_lines_met_together_with_the_answer(told: Callable[[Block], tuple[str, dict[str, Any]]]) -> None:
    def block(model: Any, backend: Any) -> None:
        with model.trace("a", backend=backend) as tracer:
            import os

            os.write(1, b"again\n" * 11)
            tracer.stop()

    sentence, meta = told(block)
    assert sentence.startswith("The block printed more than a job may (10 lines or 1048576 bytes).")
    assert meta["ended"] == "output"


@pytest.mark.parametrize("how", ["statement", "function"])
def test_modules(told: Callable[[Block], tuple[str, dict[str, Any]]], how: str) -> None:
    def block(model: Any, backend: Any) -> None:
        with model.trace("a", backend=backend):
            if how == "statement":
                import wave  # noqa: F401
            import importlib

            importlib.import_module("wave")

    sentence, _ = told(block)
    assert "This farm's policy does not let a block import 'wave'; it lets in: torch, time, threading" in sentence
