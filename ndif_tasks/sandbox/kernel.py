"""The kernel's calls that Python has no name for; each raises ``OSError`` when refused. Must not import torch."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

NEWNS, NEWUTS, NEWIPC, NEWUSER = 0x00020000, 0x04000000, 0x08000000, 0x10000000
NEWPID, NEWNET, NEWCGROUP = 0x20000000, 0x40000000, 0x02000000

NOSUID, NODEV, NOEXEC, BIND, RECURSIVE, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
ATTR_RDONLY, ATTR_NOSUID = 1, 2
_DETACH, _MADV_HUGEPAGE, _MADV_COLLAPSE = 2, 14, 25
_PRIVATE_MEMORY, _MOVE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 1 | 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PIVOT_ROOT, _MOUNT_SETATTR = {"x86_64": (155, 442), "aarch64": (41, 442)}.get(os.uname().machine, (-1, -1))

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_CAPBSET_READ, PR_CAPBSET_DROP = 1, 4, 15, 23, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 36, 38, 47, 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_ssize_t


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )


def call(number: int, *given: Any) -> int:
    """A system call by its number."""
    return _checked(_libc.syscall(ctypes.c_long(number), *given))


def allocate(size: int) -> int:
    """The address of new memory, empty, readable and writable."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    return _address(_libc.mmap(None, ctypes.c_size_t(size), access, _PRIVATE_MEMORY, -1, ctypes.c_long(0)))


def free(start: int, size: int) -> None:
    """Give memory back."""
    _checked(_libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size)))


def move(start: int, to: int, size: int) -> None:
    """Have memory at another address, instead of what is there."""
    length = ctypes.c_size_t(size)
    _address(_libc.mremap(ctypes.c_void_p(start), length, length, _MOVE, ctypes.c_void_p(to)))


def advise_huge(start: int, size: int) -> None:
    """Have these bytes in huge pages when they are written."""
    _checked(_libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_HUGEPAGE))


def collapse(start: int, size: int) -> None:
    """Gather these bytes into huge pages now."""
    _checked(_libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_COLLAPSE))


def prctl(option: int, *given: int) -> int:
    """``prctl`` with up to four numbers."""
    return _checked(_libc.prctl(option, *(ctypes.c_ulong(one) for one in (*given, 0, 0, 0, 0)[:4])))


def name_process(name: str) -> None:
    """What ``ps`` calls this process: at most 15 letters."""
    _checked(_libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0))


def unshare(flags: int) -> None:
    """Leave these namespaces for new ones; a new PID namespace is the next child's."""
    _checked(_libc.unshare(flags))


def setns(descriptor: int, kind: int) -> None:
    """Enter a namespace of one kind."""
    _checked(_libc.setns(descriptor, kind))


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    """Mount, or bind."""
    encoded = kind.encode() if kind else None
    given = (source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), options.encode() or None)
    _checked(_libc.mount(*given), target)


def restrict_mount(target: str, attributes: int, *, recursive: bool = False) -> None:
    """Add attributes, as read-only, to a mount, and to all beneath it."""
    wanted = _MountAttributes(set=attributes)
    flags = _AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    call(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), flags, ctypes.byref(wanted), size)


def pivot_root(new: str, old: str) -> None:
    """Make ``new`` the root, and mount the old one at ``old``."""
    call(_PIVOT_ROOT, new.encode(), old.encode())


def detach(target: str) -> None:
    """Take a mount out of sight at once."""
    _checked(_libc.umount2(target.encode(), _DETACH))


def capset(header: Any, sets: Any) -> None:
    """Set this process's capabilities."""
    _checked(_libc.capset(header, sets))


def _address(answer: int) -> int:
    _checked(answer if answer == -1 else 0)
    return answer


def _checked(answer: int, place: str | None = None) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), place)
    return int(answer)
