"""The jail: which walls go up around a job, in which order, and what is left inside. Must not import torch."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndif_models.errors import SettingError
from ndif_models.settings import Settings

from . import places
from .device import NONE, Device
from .walls import Refused, landlock, limits, namespaces, privileges, seccomp
from .walls.namespaces import House

USER, NAMESPACES, PRIVILEGES, LANDLOCK = "user", "namespaces", "privileges", "landlock"
SECCOMP, LIMITS = "seccomp", "limits"
#: In the order in which they go up: without new privileges anybody may raise the next, and the filter forbids the rest.
WALLS = (USER, NAMESPACES, PRIVILEGES, LANDLOCK, SECCOMP, LIMITS)
ACTIVE, DEGRADED, REFUSED = "active", "degraded", "refused"
#: For each wall whether it is active, or degraded or refused and why.
Standing = dict[str, str]

_TRIAL_BYTES = 2**30


@dataclass(frozen=True)
class Cell:
    """What one runner is enclosed in.

    Attributes:
        readable: what it may read beside the system's libraries; :func:`places.python` for one.
        scratch_bytes: how much it may write to its own ``/tmp``.
        required: the walls without which it does not run.
        device: what it reaches besides the CPU.
    """

    readable: Sequence[Path]
    scratch_bytes: int
    required: Sequence[str]
    device: Device = NONE


def enclose(house: House | None, cell: Cell) -> Standing:
    """Put the walls of a cell up around this process, all but the limits, which are each job's own.

    Args:
        house: of the zygote that forked this process as the first of a tree.
        cell: what is to be left inside.
    """
    found: Standing = {}
    if house is not None:
        found[NAMESPACES] = _standing(lambda: house.shut_in(cell.scratch_bytes))
    alone = found.get(NAMESPACES) == ACTIVE
    device = cell.device
    writable = [Path(places.NULL), *device.nodes, *([namespaces.SCRATCH] if alone else [])]
    readable = [*_visible(), *cell.readable, *device.places, *device.of_proc]
    found[PRIVILEGES] = _standing(privileges.raise_wall)
    found[LANDLOCK] = _standing(lambda: landlock.raise_wall(readable, writable))
    found[SECCOMP] = _standing(lambda: seccomp.raise_wall(alone, device))
    return found


def prepare(device: Device = NONE) -> None:
    """Make what :func:`enclose` needs, once for every process forked from this one.

    Within the walls it could not be imported, and made anew it would take each runner ten milliseconds.
    """
    for scratch in (False, True):
        with contextlib.suppress(Refused):
            seccomp.common_rules(scratch, device)


def examine(readable: Sequence[Path], device: Device = NONE) -> Standing:
    """How each wall stands when it is raised here by this user, found out by children."""
    prepare(device)
    house, cell = House(readable, device), Cell(readable, _TRIAL_BYTES, [], device)
    found = _by_child(lambda: _move_in_and_enclose(house, cell))
    if found.get(NAMESPACES) != ACTIVE:
        reason = found.get(NAMESPACES, f"{REFUSED}: the trial ended by itself")
        found = _by_child(lambda: _enclose_for_trial(None, cell)) or dict.fromkeys(WALLS, reason)
        found |= {NAMESPACES: reason, USER: f"{REFUSED}: another user could not read the models without namespaces"}
    elif os.geteuid() != 0:
        found[USER] = f"{DEGRADED}: only a farm started by root gives its jobs another user than its own"
    return {wall: found[wall] for wall in WALLS}


def move_in(readable: list[Path], device: Device, wanted: Sequence[str]) -> tuple[Standing, House | None]:
    """Go on in a house of one's own, where the kernel allows that, before a model's own code is loaded.

    Args:
        readable: what may be read there; where the model's code is laid is added.
        device: what else may be used there.
        wanted: the walls without which nothing is to run.

    Returns:
        How each wall stands, and the house; None where there are no namespaces.

    Raises:
        Refused: one of the wanted walls does not go up.
    """
    walls = examine(readable, device)
    if lacks := missing(walls, WALLS):
        print(lacks, file=sys.stderr)
    if (reason := missing(walls, wanted)) is not None:
        raise Refused(reason)
    if is_refused(walls, NAMESPACES):
        return walls, None
    house = House(readable, device)
    house.move_in()
    os.environ["HF_MODULES_CACHE"] = str(namespaces.WORKSHOP)
    readable.append(namespaces.WORKSHOP)
    return walls, house


def demand_readable(folders: Sequence[str]) -> None:
    """Say which file this user may not read, before a loader says so in a page.

    Raises:
        Refused: naming it, and the way out.
    """
    for folder in folders:
        for file in Path(folder).rglob("*"):
            if file.exists() and not os.access(file, os.R_OK):
                way_out = f"`chmod -R o+rX {folder}` lets it"
                raise Refused(f"{file} cannot be read by the user that loads models; {way_out}")


def required(settings: Settings) -> list[str]:
    """The walls without which no job runs here.

    Raises:
        SettingError: one that there is not is asked for.
    """
    if settings.dev_mode and not settings.sandbox_require:
        return []
    names = [name.strip() for name in settings.sandbox_require.split(",") if name.strip()] or list(WALLS)
    unknown = [name for name in names if name not in WALLS]
    if unknown:
        raise SettingError(f"NDIF_SANDBOX_REQUIRE names {unknown[0]!r}; the walls are {', '.join(WALLS)}.")
    return names


def missing(walls: Standing, wanted: Sequence[str]) -> str | None:
    """One sentence about those of the wanted walls that are refused; None when all are up."""
    reasons = [f"{name} ({walls[name].removeprefix(f'{REFUSED}: ')})" for name in wanted if is_refused(walls, name)]
    return f"The jail lacks {' and '.join(reasons)}." if reasons else None


def is_refused(walls: Standing, name: str) -> bool:
    """Whether a wall was tried and is not there."""
    return walls.get(name, ACTIVE).startswith(REFUSED)


def _move_in_and_enclose(house: House, cell: Cell) -> Standing:
    try:
        house.move_in()
    except Refused as error:
        return {NAMESPACES: f"{REFUSED}: {error}"}
    return _by_child(lambda: _enclose_for_trial(house, cell), house.fork)


def _enclose_for_trial(house: House | None, cell: Cell) -> Standing:
    alone = house is not None
    found = enclose(house, cell)
    return found | {USER: ACTIVE, LIMITS: _standing(lambda: limits.lower(alone=alone, memory_bytes=_TRIAL_BYTES))}


def _by_child(find: Callable[[], Standing], fork: Callable[[], int] = os.fork) -> Standing:
    """What a child, or whoever goes on in its place, finds; nothing when it ends without a word."""
    read, write = os.pipe()
    child = fork()
    if child == 0:
        try:
            found = find()
        except BaseException as error:
            found = dict.fromkeys(WALLS, f"{REFUSED}: {type(error).__name__}: {error}")
        # One write: the doors that are closed meanwhile have copies of this end.
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    standing: Standing = json.loads(text) if text else {}
    return standing


def _visible() -> list[Path]:
    # The process's own entry of /proc is another one's for every process, so it is looked up here and now.
    return [*places.system(), *map(Path, places.OF_PROC), Path(f"/proc/{os.getpid()}")]


def _standing(raise_wall: Callable[[], str]) -> str:
    try:
        weakness = raise_wall()
    except (Refused, OSError) as error:
        return f"{REFUSED}: {error}"
    return f"{DEGRADED}: {weakness}" if weakness else ACTIVE
