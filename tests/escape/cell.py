"""``python -m tests.escape.cell WALLS ATTACK TARGET``: put up walls here, attack, print what became of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ndif_tasks.sandbox import jail
from ndif_tasks.sandbox.walls import landlock, privileges, seccomp

from .attacks import ATTACKS


def main() -> None:
    """Print ``succeeded``, or the name of the error that stopped the attack."""
    walls, attack, target = sys.argv[1].split(","), ATTACKS[sys.argv[2]], json.loads(sys.argv[3])
    jail.prepare()
    if walls == ["all"]:
        reasons = [reason for reason in jail.enclose(jail.python()).values() if reason]
        assert not reasons, reasons
    if "privileges" in walls:
        privileges.raise_wall()
    if "landlock" in walls:
        landlock.raise_wall([*jail.python(), *map(Path, jail.SYSTEM)], [jail.NULL])
    if "seccomp" in walls:
        seccomp.raise_wall()
    try:
        attack(target)
    except BaseException as error:
        print(type(error).__name__)
    else:
        print("succeeded")


if __name__ == "__main__":
    main()
