"""A leash: nothing it holds outlives its owner, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ndif_models.session import process_start_time
from ndif_tasks.process import Process, signal_recorded, spawn

PYTHON = [sys.executable, "-I", "-S", "-c"]
#: Says its pid, then a child that left its session and ignores TERM, then waits.
FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    print("member", os.getpid(), flush=True)
    time.sleep(600)
print("member", os.getpid(), flush=True)
time.sleep(600)
"""

#: Leaves a grandchild behind and ends well.
LEAVER = """
import os, time
if os.fork() == 0:
    os.setsid()
    print("member", os.getpid(), flush=True)
    time.sleep(600)
time.sleep(0.2)
"""

#: Starts a leash of its own on the lifeline it was given, and ends.
STARTER = """
import os, sys
from pathlib import Path
from ndif_tasks.process import lifeline_from_environment, spawn
command = [sys.executable, "-c", "import os, time; print('member', os.getpid(), flush=True); time.sleep(600)"]
spawn(command, env=os.environ, log_path=Path(sys.argv[1]), lifeline_fd=lifeline_from_environment(), grace_s=0.3)
import time
time.sleep(0.5)
"""


class Owner:
    """A lifeline, and processes on it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.read, self.write = os.pipe()
        self.processes: list[Process] = []

    def spawn(self, *argv: str, lifeline: bool = True, grace_s: float = 0.3, **options: bool) -> Process:
        fd = self.read if lifeline else None
        process = spawn(argv, env=os.environ, log_path=self.log, lifeline_fd=fd, grace_s=grace_s, **options)
        self.processes.append(process)
        return process

    def members(self, count: int) -> list[int]:
        """The pids that the command and its family have said."""
        eventually(lambda: self.log.read_text().count("member") == count)
        return [int(line.split()[1]) for line in self.log.read_text().splitlines() if line.startswith("member")]

    def die(self) -> None:
        os.close(self.write)
        self.write = -1

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for fd in (self.read, self.write):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner(tmp_path)
    yield made
    made.close()


def eventually(true: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pids: list[int]) -> bool:
    return all(process_start_time(pid) is None for pid in pids)


def test_the_command_gets_its_output_and_exit_status_through(owner: Owner) -> None:
    process = owner.spawn(*PYTHON, "print('hello'); raise SystemExit(7)")
    assert process.wait(10) and process.poll() == 7
    assert owner.log.read_text() == "hello\n"


def test_a_command_that_a_signal_ended_reads_as_in_a_shell(owner: Owner) -> None:
    process = owner.spawn(*PYTHON, "import os; os.kill(os.getpid(), 11)")
    assert process.wait(10) and process.poll() == 128 + signal.SIGSEGV


def test_a_command_that_does_not_exist_is_said_in_a_sentence(owner: Owner) -> None:
    process = owner.spawn("/nowhere/nothing")
    assert process.wait(10) and process.poll() == 127
    assert owner.log.read_text() == "/nowhere/nothing cannot be started: No such file or directory.\n"


def test_the_owners_death_ends_the_whole_family(owner: Owner) -> None:
    process = owner.spawn(*PYTHON, FAMILY)
    members = owner.members(2)
    owner.die()
    assert process.wait(10)
    assert gone(members)


def test_a_word_on_the_lifeline_ends_every_family_on_it(owner: Owner) -> None:
    first, second = owner.spawn(*PYTHON, FAMILY), owner.spawn(*PYTHON, FAMILY)
    members = owner.members(4)
    os.write(owner.write, b"x")
    assert first.wait(10) and second.wait(10)
    assert gone(members)


def test_an_owner_killed_outright_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = (
        "import os, sys, time; from pathlib import Path; from ndif_tasks.process import spawn\n"
        "read, write = os.pipe()\n"
        "spawn(sys.argv[2:], env=os.environ, log_path=Path(sys.argv[1]), lifeline_fd=read, grace_s=0.3)\n"
        "time.sleep(600)"
    )
    dying = subprocess.Popen([sys.executable, "-c", script, str(log), *PYTHON, FAMILY])
    eventually(lambda: log.exists() and log.read_text().count("member") == 2)
    members = [int(line.split()[1]) for line in log.read_text().splitlines()]
    dying.kill()
    dying.wait()
    eventually(lambda: gone(members))


def test_the_commands_end_ends_what_it_left_behind(owner: Owner) -> None:
    process = owner.spawn(*PYTHON, LEAVER)
    members = owner.members(1)
    assert process.wait(10) and process.poll() == 0
    assert gone(members)


def test_a_leash_killed_outright_takes_its_command_along(owner: Owner) -> None:
    process = owner.spawn(*PYTHON, "import os, time; print('member', os.getpid(), flush=True); time.sleep(600)")
    members = owner.members(1)
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: gone(members))


def test_a_spared_leash_outlives_its_starter_and_not_the_owner(owner: Owner) -> None:
    starter = owner.spawn(sys.executable, "-c", STARTER, str(owner.log), spare_leashes=True)
    members = owner.members(1)
    assert starter.wait(10)
    assert not gone(members)
    owner.die()
    eventually(lambda: gone(members))


def test_stop_asks_first(owner: Owner) -> None:
    polite = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); print('member 0', flush=True)"
    process = owner.spawn(*PYTHON, polite + "; time.sleep(600)", lifeline=False)
    owner.members(1)
    assert process.stop(10) == 3


def test_stop_kills_what_does_not_listen(owner: Owner) -> None:
    process = owner.spawn(*PYTHON, FAMILY)
    members = owner.members(2)
    assert process.stop(0.2) == 128 + signal.SIGKILL
    assert gone(members)


def test_without_a_lifeline_the_command_is_told_of_none(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NDIF_LIFELINE_FD", "99")
    assert owner.spawn(*PYTHON, "import os; print(os.environ.get('NDIF_LIFELINE_FD'))", lifeline=False).wait(10)
    assert owner.log.read_text() == "None\n"


def test_a_recorded_process_is_signalled_only_while_it_is_the_same_one() -> None:
    victim = subprocess.Popen(["sleep", "600"])
    start_time = process_start_time(victim.pid)
    assert start_time is not None
    assert not signal_recorded(victim.pid, start_time + 1, signal.SIGKILL)
    assert victim.poll() is None
    assert signal_recorded(victim.pid, start_time, signal.SIGKILL)
    victim.wait()
    assert not signal_recorded(victim.pid, start_time, signal.SIGKILL)
