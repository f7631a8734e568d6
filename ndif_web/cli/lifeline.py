"""The pipe on which every process of a session hangs, and who still holds on to it."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Collection
from pathlib import Path


class Lifeline:
    """A lifeline's owner. Processes get ``fd``; what it says, or its end, ends them."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        self.inode = os.fstat(self.fd).st_ino

    def end(self, limit_s: float) -> bool:
        """End everything that hangs on it; whether all of it was gone within the time."""
        os.close(self.fd)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, b"x")
        poller = select.poll()
        # With nothing asked for, poll reports only that the last reader has gone.
        poller.register(self._write, 0)
        gone = bool(poller.poll(limit_s * 1000))
        os.close(self._write)
        return gone


def held(inodes: Collection[int], pid: str = "[0-9]*") -> bool:
    """Whether any process of this user, or the one named, still has one of these pipes open."""
    names = {f"pipe:[{inode}]" for inode in inodes}
    return any(_link(fd) in names for fds in Path("/proc").glob(f"{pid}/fd") for fd in _listed(fds))


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
