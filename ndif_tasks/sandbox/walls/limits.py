"""Limits of a process: memory, processor time, threads, open files. They go down, and never up again.

A runner lowers its own, as its request says and before it opens the payload: nobody else may do so everywhere, and in
many a container not even root. Must not import torch.
"""

from __future__ import annotations

import math
import resource
import time


def lower(*, alone: bool, memory_bytes: int = 0, cpu_s: int = 0, threads: int = 0, open_files: int = 0) -> str:
    """Lower the limits of this process; 0 leaves one as it is.

    Args:
        alone: whether its users are its own: the kernel counts threads by user, and not by process.
        memory_bytes: address space beside what is mapped already.
        cpu_s: processor time of all its threads together, from now on.
        threads: how many it may have.
        open_files: the highest descriptor it may have, and one.
    """
    # Of 0 the kernel takes no notice where a program on the host is given what is dumped; of 1 it does.
    wanted = [(resource.RLIMIT_CORE, 1)]
    if memory_bytes:
        wanted.append((resource.RLIMIT_AS, _mapped_bytes() + memory_bytes))
    if cpu_s:
        wanted.append((resource.RLIMIT_CPU, math.ceil(time.process_time()) + cpu_s))
    if threads and alone:
        wanted.append((resource.RLIMIT_NPROC, threads))
    if open_files:
        wanted.append((resource.RLIMIT_NOFILE, open_files))
    for kind, limit in wanted:
        _, most = resource.getrlimit(kind)
        least = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (least, least))
    return "" if alone else "threads are not limited: without namespaces everybody's would be counted"


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
