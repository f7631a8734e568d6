"""Payloads and results that are attacks themselves: crafted pickles, and compressed nothings that unpack to much.

Only the runner unpickles a payload, in its jail, and only the client a result: no other process of the farm does.
"""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests import models
from tests.farm import Farm
from tests.sender import Sender

from .conftest import Record

UNREADABLE = "The request could not be read: "


@pytest.fixture
def stranger(farm: Farm, remote_model: Callable[[str], Any], farm_is_as_it_was: None) -> Sender:
    """Sends whatever it likes as a payload."""
    return Sender(farm.url, remote_model(models.GPT2).to_model_key(), b"")


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file that is there once a crafted pickle has done what it is made for."""
    return tmp_path / "canary"


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable[..., Any], *given: Any) -> None:
        self._call = (function, given)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def pickle_that_runs(code: str) -> bytes:
    """Runs code as it is unpickled."""
    return pickle.dumps(Calls(exec, code), protocol=4)


def unpickle(blob: bytes) -> None:
    """Unpickle in a process without walls."""
    subprocess.run([sys.executable, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"], input=blob, check=True)


def told(sender: Sender, blob: bytes, compress: bool = False) -> str:
    """What is said of a payload that fails."""
    answer = sender.post(sender.envelope(compress=compress), blob)
    assert answer.status_code == 200, answer.text
    return str(sender.wait_for(answer.json()["id"], "ERROR")["description"])


@pytest.mark.parametrize("compress", [False, True])
def test_a_payload_that_writes_a_file(compress: bool, stranger: Sender, canary: Path) -> None:
    blob = pickle_that_runs(f"open({str(canary)!r}, 'w').close()")
    sentence = told(stranger, zstandard.compress(blob) if compress else blob, compress)
    assert sentence.startswith((f"{UNREADABLE}PermissionError", f"{UNREADABLE}FileNotFoundError"))
    assert not canary.exists()
    unpickle(blob)
    assert canary.exists()


def test_a_payload_that_makes_a_process(stranger: Sender, canary: Path) -> None:
    blob = pickle_that_runs(f"import subprocess; subprocess.run(['touch', {str(canary)!r}], check=True)")
    assert told(stranger, blob).startswith(f"{UNREADABLE}PermissionError")
    assert not canary.exists()
    unpickle(blob)
    assert canary.exists()


def test_a_payload_that_ends_its_process(stranger: Sender) -> None:
    sentence = told(stranger, pickle_that_runs("import os; os._exit(3)"))
    assert sentence == "The block ended its process (exit status 3) before its values were sent."


def test_a_payload_that_is_never_through(stranger: Sender) -> None:
    blob = pickle_that_runs("print('running'); import itertools; sum(itertools.repeat(0, 10**10))")
    answer = stranger.post(stranger.envelope(compress=False), blob)
    id = str(answer.json()["id"])
    stranger.wait_printed(id, "running")
    assert stranger.cancel(id)
    assert stranger.wait_for(id, "ERROR")["description"].startswith("The job was cancelled.")


def test_a_payload_that_claims_an_exbibyte(stranger: Sender) -> None:
    blob = b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x"
    assert told(stranger, blob).startswith(UNREADABLE)


def test_a_payload_that_unpacks_to_much(stranger: Sender) -> None:
    content = bytes(64 * 2**20)
    bomb = zstandard.compress(content)
    assert len(bomb) * 1000 < len(content) and zstandard.decompress(bomb) == content
    assert told(stranger, bomb, compress=True).startswith(UNREADABLE)


def test_a_payload_that_unpacks_to_more_than_there_is(stranger: Sender) -> None:
    """Of a tebibyte that a frame claims not a byte is made: its job may have no such memory."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40) + (128 * 1024 << 3 | 3).to_bytes(3, "little") + b"\0"
    assert told(stranger, frame, compress=True).startswith(UNREADABLE)


@pytest.mark.parametrize("size", [0, 2**17], ids=["inline", "by the store"])
def test_a_crafted_result_is_passed_on_unopened(size: int, recorded: Record, canary: Path) -> None:
    body = pickle_that_runs(f"open({str(canary)!r}, 'w').close()") + bytes(size)
    header = f'{{"type":"result","bytes":{len(body)}}}'.encode()
    frame = struct.pack("!I", len(header)) + header + body
    sender = recorded("lie", {"frame": frame.decode("latin-1")})
    assert sender.body(sender.submit()) == body
    assert not canary.exists()
    unpickle(body)
    assert canary.exists()
