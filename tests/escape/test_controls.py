"""Every attack where there is no wall: it succeeds, and leaves the mark that is looked for where there are walls.

Without this nobody would know whether an attack is stopped, or never was one.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from pathlib import Path

import pytest

from tests.farm import wait_until

from .attacks import ATTACKS, BOMBS
from .table import marks, skip_unless_root
from .victims import Victims

TIMEOUT_S = 60


def outcome(process: subprocess.Popen[str]) -> str:
    """The last line of a cell that ends by itself, or how it ended."""
    text, complaint = process.communicate(timeout=TIMEOUT_S)
    assert not complaint, complaint
    return text.strip().rpartition("\n")[2] if process.returncode == 0 else f"ended with {process.returncode}"


@pytest.mark.parametrize("name", [*ATTACKS, *BOMBS])
def test_an_attack_succeeds_where_there_is_no_wall(name: str, victim: Victims) -> None:
    skip_unless_root(name)
    victim.target["patience_s"] = TIMEOUT_S / 6
    assert outcome(victim.cell(name)) == "succeeded"
    wait_until(lambda: victim.harm() == marks(name), what="the attack's mark")


def test_a_flood_is_as_large_as_it_says(victim: Victims) -> None:
    for name, lines, size in (("output_flood", 40_000, 2**16), ("endless_line", 1, 2**20)):
        text, _ = victim.cell(name).communicate(timeout=TIMEOUT_S)
        assert text.count("\n") > lines and len(text) > size


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("exit_at_once", 3),
        ("crash", -signal.SIGSEGV),
        ("abort", -signal.SIGABRT),
        ("run_no_instruction", -signal.SIGILL),
        ("kill_itself", -signal.SIGKILL),
        ("lie", 0),
    ],
)
def test_an_ending_is_one(name: str, status: int, victim: Victims) -> None:
    victim.target["frame"] = "x"
    process = victim.cell(name)
    assert (process.communicate(timeout=TIMEOUT_S)[0], process.returncode) == ("", status)
    assert victim.harm() == marks(name)


def test_a_native_loop_ends_when_it_is_through(victim: Victims) -> None:
    victim.target["rounds"] = 1000
    assert outcome(victim.cell("loop_natively")) == "succeeded"


@pytest.mark.parametrize("name", ["ignore_every_signal", "promise_and_linger", "hang_up_and_linger", "linger"])
def test_who_lingers_does_so_until_it_is_enough(name: str, victim: Victims, tmp_path: Path) -> None:
    victim.target |= {"seconds": TIMEOUT_S, "enough": str(tmp_path / "enough")}
    process = victim.cell(name)
    assert process.stdout is not None and process.stdout.readline() == "running\n"
    if name == "ignore_every_signal":
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            process.send_signal(number)
    (tmp_path / "enough").touch()
    assert outcome(process) == "succeeded"


def test_a_process_that_stops_itself_is_stopped(victim: Victims) -> None:
    process = victim.cell("stop_itself")
    found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert found is not None and found.si_status == signal.SIGSTOP


def test_the_past_of_an_environment_is_in_memory(victim: Victims) -> None:
    past = secrets.token_hex(16)  # not the victim's word, which every attacker is told
    victim.target["secrets"] = [[past[:16], past[16:]]]
    assert outcome(victim.cell("find_a_secret_in_its_memory", environment={"PAST": past})) == "succeeded"
    assert "no secret anywhere" in outcome(victim.cell("find_a_secret_in_its_memory"))
