"""A process that attacks.

``python -m tests.escape.cell ATTACK TARGET`` does so without a wall, and prints ``succeeded`` or what stopped it;
``… cell WALL ATTACKS TARGET`` behind one wall, each of the attacks in a fork of its own, and prints all as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .attacks import ALL
from .attacks.calls import call


def walls() -> dict[str, Callable[[], object]]:
    """How each wall of the jail goes up by itself."""
    from ndif_tasks.sandbox import jail, places
    from ndif_tasks.sandbox.walls import landlock, limits, privileges, seccomp, user
    from ndif_tasks.sandbox.walls.namespaces import House

    jail.prepare()
    readable = places.python()
    house = House(readable)

    def namespaces() -> None:
        house.move_in()
        child = house.fork()
        if child:
            os.waitpid(child, 0)
            os._exit(0)
        house.shut_in(2**20)

    return {
        jail.USER: user.drop,
        jail.NAMESPACES: namespaces,
        jail.PRIVILEGES: privileges.raise_wall,
        jail.LANDLOCK: lambda: landlock.raise_wall(
            [*readable, *places.system(), Path(f"/proc/{os.getpid()}")], [Path(places.NULL)]
        ),
        jail.SECCOMP: seccomp.raise_wall,
        jail.LIMITS: lambda: limits.lower(alone=True, memory_bytes=2**28, threads=64, open_files=64),
    }


def attempt(attack: str, target: dict[str, Any]) -> str:
    """Attack from here."""
    try:
        ALL[attack](target)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "succeeded"


def behind(raise_wall: Callable[[], object], attack: str, target: dict[str, Any]) -> str:
    """Attack from a fork, behind a wall."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(2, 1)
            call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, without which only root may raise the others
            raise_wall()
            os.write(write, attempt(attack, target).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return text or f"ended with {os.waitstatus_to_exitcode(status)}"


def main() -> None:
    """Entry point."""
    *wall, attacks, target = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a user's is lower to begin with
    if not wall:
        print(attempt(attacks, json.loads(target)))
        return
    raise_wall = walls()[wall[0]]
    print(json.dumps({name: behind(raise_wall, name, json.loads(target)) for name in attacks.split(",")}))


if __name__ == "__main__":
    main()
