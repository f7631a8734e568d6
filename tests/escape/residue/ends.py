"""How hostile jobs end, and what they try to leave outside their process; sent with a block, by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "ndif-escape-left"
PLACES = ("/tmp", "/var/tmp", "/dev/shm")


def raise_an_error() -> None:
    raise ValueError("after the damage")


def leave_python() -> None:
    import os

    os._exit(3)


def abort() -> None:
    import os

    os.abort()


def crash() -> None:
    import ctypes

    ctypes.string_at(0)


def break_the_connection() -> None:
    import os

    os.closerange(3, 256)


ENDS: dict[str, Callable[[], object]] = {
    one.__name__: one for one in (raise_an_error, leave_python, abort, crash, break_the_connection)
}
#: What the caller of each is told.
TOLD = {
    "raise_an_error": "after the damage",
    "leave_python": "exit status 3",
    "abort": "SIG",
    "crash": "SIGSEGV",
    "break_the_connection": "exit status 1",
}


def take_epolls_apart() -> None:
    """Unregister everything from every epoll that can be reached."""
    import ctypes

    remove = 2
    libc = ctypes.CDLL(None)
    for descriptor in range(3, 64):
        for other in range(3, 64):
            libc.epoll_ctl(descriptor, remove, other, None)


def draw() -> list[int]:
    """A long number from every generator."""
    import random

    import numpy
    import torch

    return [int(torch.randint(2**62, ())), random.getrandbits(62), int(numpy.random.randint(2**62))]


def seed() -> None:
    """Seed every generator."""
    import random

    import numpy
    import torch

    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def leave_things() -> list[str]:
    """Try to leave files, memory and processes; gives the names of what could be."""
    import multiprocessing.shared_memory
    import os
    import signal

    import torch

    def daemon() -> None:
        if os.fork() == 0:
            os.setsid()
            signal.pause()

    def file(folder: str) -> Callable[[], Any]:
        return lambda: open(f"{folder}/{NAME}", "w").close()

    ways: dict[str, Callable[[], Any]] = {folder: file(folder) for folder in (*PLACES, os.getcwd())}
    ways |= {
        "daemon": daemon,
        "shared memory": lambda: multiprocessing.shared_memory.SharedMemory(NAME, create=True, size=4096),
        "shared tensor": lambda: torch.ones(3).share_memory_(),
        "anonymous file": lambda: os.memfd_create(NAME),
    }
    done = []
    for name, way in ways.items():
        try:
            way()
        except (OSError, RuntimeError):
            continue
        done.append(name)
    return done
