"""``python -m tests.escape.container KIND``: become like a process in a container, and print how the walls stand there.

No container engine is needed: Docker's default capabilities, its filter's refusals that matter here, and its masked
``/proc`` are made by hand.
"""

from __future__ import annotations

import errno
import json
import sys

from ndif_tasks.sandbox import jail, kernel
from ndif_tasks.sandbox.walls import privileges, seccomp

#: The capabilities that Docker leaves root by default, by number; no new mounts or namespaces among them.
DOCKERS = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31})
#: What Docker's default filter refuses a process without CAP_SYS_ADMIN, of what the walls call.
REFUSED = ("unshare", "setns", "mount", "umount2", "pivot_root", "mount_setattr")


def stock() -> None:
    """Docker as it comes."""
    unconfined()
    filtering = seccomp.library()
    refusing = filtering.SyscallFilter(defaction=filtering.ALLOW)
    for name in REFUSED:
        refusing.add_rule(filtering.ERRNO(errno.EPERM), name)
    refusing.load()


def unconfined() -> None:
    """With ``seccomp=unconfined``, ``apparmor=unconfined`` and ``systempaths=unconfined``."""
    privileges.give_up(keep=DOCKERS)


def masked() -> None:
    """The same, but with parts of ``/proc`` covered."""
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("/dev/null", "/proc/keys", None, kernel.BIND)
    unconfined()


if __name__ == "__main__":
    {"stock": stock, "unconfined": unconfined, "masked": masked}[sys.argv[1]]()
    # Nothing but the system's places is asked for: Python itself may lie where only root can read.
    print(json.dumps(jail.examine([])))
