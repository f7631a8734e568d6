"""Attacks as a stranger makes them: blocks sent through the front door. Each is stopped, told in the caller's own
words, and the next job's values are what they always are.

That each succeeds where there is no wall is shown in ``test_walls.py``, with the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ndif_models import snapshots
from tests import models
from tests.farm import Farm, descendants_of_session

from .attacks import ATTACKS
from .conftest import skip_unless_root

PROMPT = "The farm answers"
#: What the kernel says of what is not allowed, or not there at all.
STOPPED = (
    *("Permission denied", "Operation not permitted", "No such file or directory", "No such process"),
    *("Read-only file system", "Connection refused"),
)
Send = Callable[[Any, dict[str, Any]], str]


@pytest.fixture
def send(remote_model: Callable[[str], Any], local_model: Callable[[str], Any]) -> Iterator[Send]:
    """Send an attack and give what its caller is told; afterwards the farm is as it was."""
    import nnsight
    import torch
    from nnsight.intervention.backends.remote import RemoteError

    model = remote_model(models.GPT2)
    nnsight.register(ATTACKS["fork"].__module__)

    def attack_with(attack: Any, target: dict[str, Any]) -> str:
        with pytest.raises(RemoteError) as told, model.trace(PROMPT, remote=True):
            attack(target)
        return str(told.value)

    yield attack_with
    with model.trace(PROMPT, remote=True):
        there = model.lm_head.output.save()
    with local_model(models.GPT2).trace(PROMPT):
        here = local_model(models.GPT2).lm_head.output.save()
    assert torch.equal(here, there)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_stopped_and_told(name: str, send: Send, target: dict[str, Any]) -> None:
    skip_unless_root(name)
    text = send(ATTACKS[name], target)
    assert any(words in text for words in STOPPED), text


def test_the_farms_secrets_and_other_models_are_out_of_reach(send: Send, farm: Farm, target: dict[str, Any]) -> None:
    other = snapshots.find(farm.hf_home, models.LLAMA)
    assert other is not None
    weights = snapshots.folder(farm.hf_home, other) / "model.safetensors"
    places = [farm.session_dir / "secrets.json", farm.session_dir / "session.json", weights, Path(__file__)]
    assert all(place.is_file() for place in places)
    for place in places:
        assert "No such file or directory" in send(ATTACKS["read_a_secret_file"], target | {"secret": str(place)})


def test_the_farms_processes_are_out_of_reach(send: Send, farm: Farm, target: dict[str, Any]) -> None:
    names = ("read_anothers_environment", "read_anothers_memory", "signal_another", "trace_another")
    pids = [pid for pid, arguments in descendants_of_session(farm.session_dir.parent) if "ndif_tasks" in arguments]
    assert len(pids) >= 4
    for pid in pids[:6]:
        for name in names:
            text = send(ATTACKS[name], target | {"pid": pid})
            assert any(words in text for words in STOPPED), (name, text)


def test_a_lying_frame_costs_its_own_job_only(send: Send, target: dict[str, Any]) -> None:
    def lie(given: dict[str, Any]) -> None:
        import os
        import stat

        for descriptor in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    os.write(descriptor, given["bytes"])
            except OSError:
                continue
        os._exit(0)

    frames = [b"\xff\xff\xff\xff", b"\0\0\0\x02{}", b"\0\0\0\x05hello", b"\0\0\0\x10short"]
    frames += [b'\0\0\0\x22{"type":"result","bytes":1000000000}', b'\0\0\0\x1b{"type":"result","bytes":-1}']
    for frame in frames:
        text = send(lie, target | {"bytes": frame})
        assert text.startswith("The block ") and "\n" not in text, (frame, text)


def test_bombs_burst_in_their_own_cell(send: Send, target: dict[str, Any]) -> None:
    def descriptors(_: dict[str, Any]) -> None:
        import os

        while True:
            os.dup(0)

    def memory(_: dict[str, Any]) -> None:
        import mmap

        # Never touched, so that a machine without the wall would not feel it.
        held = [mmap.mmap(-1, 2**33) for _ in range(1000)]
        held.clear()

    assert "Too many open files" in send(descriptors, target)
    assert "Cannot allocate memory" in send(memory, target)
