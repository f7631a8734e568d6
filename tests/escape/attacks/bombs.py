"""Bombs: each takes much of one thing at once, gives it back, and stops by itself far below what would hurt anybody."""

from __future__ import annotations

from .calls import Target


def fork_bomb(target: Target) -> object:
    import os

    children = []
    for _ in range(64):
        child = os.fork()
        if child == 0:
            os._exit(0)
        children.append(child)
    return [os.waitpid(child, 0) for child in children]


def thread_bomb(target: Target) -> object:
    import threading

    enough = threading.Event()
    threads = [threading.Thread(target=enough.wait, args=(60,)) for _ in range(300)]
    try:
        for thread in threads:
            thread.start()
    finally:
        enough.set()
    return len(threads)


def descriptor_bomb(target: Target) -> object:
    import os

    held = []
    try:
        for _ in range(2000):
            held.append(os.dup(0))
    finally:
        for descriptor in held:
            os.close(descriptor)
    return len(held)


def memory_bomb(target: Target) -> object:
    """A terabyte of addresses, none of which is ever touched."""
    import mmap

    held = [mmap.mmap(-1, 2**33) for _ in range(128)]
    for one in held:
        one.close()
    return len(held)


def disk_bomb(target: Target) -> object:
    with open(target["folder"] + "/bomb", "wb") as file:
        return [file.write(bytes(2**20)) for _ in range(64)]


def output_flood(target: Target) -> object:
    """Twice what a pipe holds, and twice what a job may print: nobody reads only the end of it."""
    for _ in range(40_000):
        print("again")
    return True


def endless_line(target: Target) -> object:
    for _ in range(2**12):
        print("again" * 100, end="")
    return print()


BOMBS = (fork_bomb, thread_bomb, descriptor_bomb, memory_bomb, disk_bomb, output_flood, endless_line)
