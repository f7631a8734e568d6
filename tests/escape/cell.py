"""``python -m tests.escape.cell WALLS ATTACK TARGET``: put up walls here, attack, print what became of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ndif_tasks.sandbox import jail, kernel, places
from ndif_tasks.sandbox.walls import landlock, privileges, seccomp
from ndif_tasks.sandbox.walls.namespaces import House

from .attacks import ATTACKS


def main() -> None:
    """Print ``succeeded``, or the name of the error that stopped the attack."""
    walls, attack, target = sys.argv[1].split(","), ATTACKS[sys.argv[2]], json.loads(sys.argv[3])
    enclose(walls)
    try:
        attack(target)
    except BaseException as error:
        print(type(error).__name__)
    else:
        print("succeeded")


def enclose(walls: list[str]) -> None:
    """Put up these walls around this process, or a child that goes on in its place."""
    jail.prepare()
    readable = places.python()
    house = House(readable)
    if {"namespaces", "all"} & set(walls):
        house.move_in()
        child = house.fork()
        if child:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if walls == ["all"]:
        standing = jail.enclose(house, jail.Cell(readable, 2**20, []))
        assert set(standing.values()) == {jail.ACTIVE}, standing
        return
    if "namespaces" in walls:
        house.shut_in(2**20)
    if "privileges" in walls:
        privileges.raise_wall()
    if "landlock" in walls:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)  # or only root may put it up
        landlock.raise_wall([*readable, *places.system(), Path(f"/proc/{os.getpid()}")], [Path(places.NULL)])
    if "seccomp" in walls:
        seccomp.raise_wall()


if __name__ == "__main__":
    main()
