"""What attacks aim at: files, a listener and a process that a test makes, and that end with it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models import ROOT

#: Some attacks are no attacks from a user whom the kernel stops anyway.
NEEDS_ROOT = frozenset({"make_a_device", "take_a_file", "change_the_root", "set_the_hostname", "be_nicer_to_itself"})


@pytest.fixture
def target(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The victim of one test."""
    for name in ("secret", "doomed"):
        (tmp_path / name).write_text("somebody else's")
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen(argv, stdin=subprocess.PIPE, env={"SECRET": "x"}) as victim,
    ):
        yield {
            "secret": str(tmp_path / "secret"),
            "doomed": str(tmp_path / "doomed"),
            "folder": str(tmp_path),
            "port": listener.getsockname()[1],
            "pid": victim.pid,
        }
        victim.kill()


@pytest.fixture
def outcome(target: dict[str, Any]) -> Callable[[str, str], str]:
    """What becomes of an attack behind some walls, in a process of its own."""

    def run(walls: str, attack: str) -> str:
        argv = [sys.executable, "-m", "tests.escape.cell", walls, attack, json.dumps(target)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
        return done.stdout.strip() or f"status {done.returncode}: {done.stderr[-500:]}"

    return run


def skip_unless_root(attack: str) -> None:
    """An attack that nobody but root can make is tried by root alone."""
    if attack in NEEDS_ROOT and os.geteuid() != 0:
        pytest.skip("the kernel stops this attack without any wall, when not made by root")
