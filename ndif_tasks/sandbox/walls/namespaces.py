"""Namespaces: a root of read-only binds, a tree of processes, a network, an IPC, a host name and users of one's own.

A zygote moves into a house of its own, once, and keeps there the one capability that a cell in it takes: each runner is
forked as the first process of a new tree, and shuts itself into a cell. What dies first in a tree takes all of the tree
with it. Must not import torch.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from .. import kernel, places
from ..device import NONE, Device
from . import Refused, privileges, user

_HOUSE = kernel.NEWNS | kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWCGROUP
_CELL = kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS
_PROC = kernel.NOSUID | kernel.NODEV | kernel.NOEXEC
_READ_ONLY = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID
#: Where the old root is seen while the new one is put together.
_OLD = "/.old"
#: A zygote may write here while it loads, and its runners may read what it wrote.
WORKSHOP = Path("/run/ndif")
SCRATCH = Path("/tmp")
_OWN_BYTES = 256 * 2**20
_BYTES_A_FILE = 16 * 2**10


class House:
    """Where a zygote lives, once :meth:`move_in` has returned."""

    def __init__(self, readable: Iterable[Path], device: Device = NONE) -> None:
        wanted = places.outermost([*places.system(), *readable, *device.places])
        self._places = [(place, place.resolve()) for place in wanted]
        self._nodes = device.nodes
        self._tree = -1

    def move_in(self) -> str:
        """Go on as the first process in a house with these places only; what was this process waits for its end.

        Needs to be called from a process with one thread. Leaves the user that started it, when that is root.

        Raises:
            Refused: the kernel, or whoever started the farm, does not allow it; this process is good for nothing else.
        """
        try:
            _leave()
            _become_first()
            _build(self._places, self._nodes)
            if os.geteuid() == 0:
                user.drop()
            # What is mounted so far is from now on locked as it is, for whoever lives here. A tree made by these users
            # is one that a capability among them can come back to.
            _own_users(kernel.NEWNS | kernel.NEWPID)
            _become_first()
            kernel.mount("proc", "/proc", "proc", _PROC)
            self._tree = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            raise Refused(f"namespaces: {error.strerror}{place}") from None
        return privileges.raise_wall(keep=frozenset({privileges.SYS_ADMIN}))

    def fork(self) -> int:
        """As ``os.fork``; the child is the first of a tree of its own."""
        kernel.unshare(kernel.NEWPID)
        child = -1
        try:
            child = os.fork()
        finally:
            if child:
                # A process may make one new tree: only back in its own can it make the next.
                kernel.setns(self._tree, kernel.NEWPID)
        return child

    def shut_in(self, scratch_bytes: int) -> str:
        """Shut this process, the first of a tree of its own, into a cell: nobody else's processes or mounts are in it.

        Args:
            scratch_bytes: how much it may write to its own empty ``/tmp``.

        Raises:
            OSError: the kernel does not do it.
        """
        kernel.unshare(_CELL)
        kernel.mount("proc", "/proc", "proc", _PROC)
        self._empty_scratch(scratch_bytes)
        kernel.restrict_mount(str(WORKSHOP), kernel.ATTR_RDONLY)
        # Of these users none is mapped: it is nobody, and may do nothing to what was made before.
        kernel.unshare(kernel.NEWUSER)
        return ""

    def _empty_scratch(self, size: int) -> None:
        hidden = [place for place, _ in self._places if place.is_relative_to(SCRATCH)]
        handles = [os.open(place, os.O_PATH | os.O_CLOEXEC) for place in hidden]
        _mount_memory(SCRATCH, size)
        for place, handle in zip(hidden, handles, strict=True):
            _bind(place, Path(f"/proc/self/fd/{handle}"))
            os.close(handle)


def _leave() -> None:
    try:
        kernel.unshare(_HOUSE)
    except PermissionError:
        if os.geteuid() == 0:
            user.drop()
        _own_users(_HOUSE)


def _own_users(flags: int) -> None:
    """Enter new namespaces together with new users, of which there is one: who this process is already."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or its entries in /proc, written below, would not be its own
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER | flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text)


def _become_first() -> None:
    """Go on as a child, the first in the new tree; what was this process is its door, and ends as it ends."""
    child = os.fork()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if child == 0:
        return
    kernel.name_process("ndif-door")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _build(readable: Sequence[tuple[Path, Path]], nodes: Sequence[Path]) -> None:
    """A root with these places, each from where its links lead, these devices, and nothing else."""
    base = str(SCRATCH)
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("tmpfs", base, "tmpfs", kernel.NOSUID | kernel.NODEV, "mode=0755")
    os.mkdir(base + _OLD)
    kernel.pivot_root(base, base + _OLD)
    os.chdir("/")
    os.mkdir("/proc")
    # While the old one is in sight: the kernel lets nobody see more of it than before.
    kernel.mount("proc", "/proc", "proc", _PROC)
    for own in (SCRATCH, WORKSHOP):
        own.mkdir(parents=True)
        _mount_memory(own, _OWN_BYTES)
    for place, source in readable:
        _bind(place, Path(f"{_OLD}{source}"))
    for node in (Path(places.NULL), *nodes):
        _bind(node, Path(f"{_OLD}{node}"), kernel.ATTR_NOSUID)
    kernel.detach(_OLD)
    os.rmdir(_OLD)
    kernel.restrict_mount("/", _READ_ONLY)
    socket.sethostname("ndif")  # or it would still be the machine's


def _bind(place: Path, source: Path, attributes: int = _READ_ONLY) -> None:
    if source.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    kernel.mount(str(source), str(place), None, kernel.BIND | kernel.RECURSIVE)
    kernel.restrict_mount(str(place), attributes, recursive=True)


def _mount_memory(place: Path, size: int) -> None:
    options = f"mode=1777,size={size},nr_inodes={max(16, size // _BYTES_A_FILE)}"
    kernel.mount("tmpfs", str(place), "tmpfs", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC, options)
