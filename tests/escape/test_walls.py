"""Each wall by itself: behind it alone its attacks fail (that they succeed without it is ``test_controls.py``'s)."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ndif_models.errors import SettingError
from ndif_models.settings import Settings
from ndif_tasks.sandbox import jail, kernel, places
from ndif_tasks.sandbox.walls import Refused, landlock, seccomp
from tests.models import ROOT

from .attacks import ATTACKS, BOMBS
from .table import PROCESS, STOPPED_BY, is_refusal
from .victims import Victims


@pytest.mark.parametrize("wall", STOPPED_BY)
def test_a_wall_alone_stops_its_attacks(wall: str, victim: Victims) -> None:
    if wall == jail.USER and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    text, complaint = victim.cell(wall, ",".join(STOPPED_BY[wall])).communicate(timeout=60)
    outcomes = json.loads(text)
    assert list(outcomes) == list(STOPPED_BY[wall]), complaint
    assert {name: outcome for name, outcome in outcomes.items() if not is_refusal(outcome)} == {}
    assert victim.harm() == set()


def test_every_attack_is_somebodys_to_stop() -> None:
    stopped = {attack for attacks in STOPPED_BY.values() for attack in attacks}
    assert stopped.isdisjoint(PROCESS)
    assert stopped | set(PROCESS) == set(ATTACKS) | set(BOMBS)


def test_every_wall_has_attacks() -> None:
    assert set(STOPPED_BY) == set(jail.WALLS)


WALK = """
import ctypes, errno, json, sys
from ndif_tasks.sandbox.walls import seccomp
seccomp.raise_wall(scratch=sys.argv[2] == "True")
libc = ctypes.CDLL(None, use_errno=True)
found = {}
clone = seccomp.library().resolve_syscall(seccomp.library().Arch.NATIVE, "clone")
for number in json.loads(sys.argv[1]):
    # Arguments with which a kernel without the wall would do nothing either: all ones, for clone nonsense flags.
    first = 0x800 if number == clone else -1
    answer = libc.syscall(ctypes.c_long(number), first, -1, -1, -1, -1, -1)
    found[number] = ctypes.get_errno() if answer == -1 else 0
print(json.dumps(found))
"""


#: uretprobe and uprobe: the kernel exempts its own trampolines from filters, and signals whoever else calls them.
KERNELS_OWN = {335, 336}


@pytest.mark.parametrize("scratch", [False, True], ids=["without a folder", "with one"])
def test_every_other_system_call_is_refused(scratch: bool) -> None:
    library = seccomp.library()
    partly = (
        "clone",
        "fcntl",
        "kill",
        "tgkill",
        "prctl",
        "ioctl",
        "sendto",
        "socketpair",
        "prlimit64",
        "sched_setaffinity",
    )
    allowed = (*seccomp.ALLOWED, *(seccomp.SCRATCH.split() if scratch else ()))
    known = {library.resolve_syscall(library.Arch.NATIVE, name) for name in (*allowed, "clone3")}
    numbers = sorted(set(range(1024)) - known - KERNELS_OWN)
    argv = [sys.executable, "-c", WALK, json.dumps(numbers), str(scratch)]
    found = json.loads(subprocess.run(argv, capture_output=True, check=True, timeout=60, cwd=ROOT).stdout)
    partly_numbers = {library.resolve_syscall(library.Arch.NATIVE, name) for name in partly}
    assert len(numbers) > 800 and partly_numbers < set(numbers)
    assert {number for number, code in found.items() if code != errno.EPERM} == set()


def test_the_list_names_each_call_once() -> None:
    assert len(set(seccomp.ALLOWED)) == len(seccomp.ALLOWED)


def test_a_kernel_without_landlock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(kernel, "call", refuse)
    with pytest.raises(Refused, match="Function not implemented"):
        landlock.raise_wall([], [])


def test_a_missing_wall_that_is_required_is_one_sentence() -> None:
    walls = dict.fromkeys(jail.WALLS, "active") | {"landlock": "refused: not implemented", "user": "degraded: no root"}
    assert jail.missing(walls, []) is None
    assert jail.missing(walls, ["privileges", "user"]) is None
    assert jail.missing(walls, jail.WALLS) == "The jail lacks landlock (not implemented)."


@pytest.mark.parametrize(
    ("settings", "walls"),
    [
        (Settings(), []),
        (Settings(dev_mode=False), list(jail.WALLS)),
        (Settings(sandbox_require="seccomp"), ["seccomp"]),
        (Settings(dev_mode=False, sandbox_require="seccomp, landlock"), ["seccomp", "landlock"]),
    ],
)
def test_which_walls_a_farm_requires(settings: Settings, walls: list[str]) -> None:
    assert jail.required(settings) == walls


def test_a_required_wall_that_there_is_not_is_named() -> None:
    with pytest.raises(SettingError, match="NDIF_SANDBOX_REQUIRE names 'moat'"):
        jail.required(Settings(sandbox_require="seccomp,moat"))


def test_the_trial_leaves_this_process_as_it_was() -> None:
    user = os.geteuid()
    found = jail.examine(places.python())
    assert {wall for wall, standing in found.items() if standing != jail.ACTIVE} <= ({"user"} if user else set())
    assert os.geteuid() == user and os.listdir("/") and Path("/etc/passwd").read_text()
