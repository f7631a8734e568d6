"""No capabilities, now or ever: the set a process has, the ones it could get by executing a file, and the way there."""

from __future__ import annotations

import contextlib
import ctypes

from .. import kernel
from . import Refused

SYS_ADMIN = 21
_CAPABILITY_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def raise_wall(keep: frozenset[int] = frozenset()) -> str:
    """Give up every capability but some, and every way to new ones.

    Args:
        keep: numbers of those that stay, beneath 32.

    Raises:
        Refused: the kernel does not do it.
    """
    try:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
        give_up(keep)
    except OSError as error:
        raise Refused(f"capabilities stay: {error.strerror}") from None
    return ""


def give_up(keep: frozenset[int]) -> None:
    """Give up every capability but some, without closing the way to new ones.

    Raises:
        OSError: the kernel does not do it.
    """
    _empty_the_bounding_set(keep)
    kept = sum(1 << number for number in keep)
    kernel.capset(ctypes.byref(_Header(_CAPABILITY_VERSION_3, 0)), ctypes.byref((_Sets * 2)(_Sets(kept, kept, 0))))


def _empty_the_bounding_set(keep: frozenset[int]) -> None:
    number = 0
    with contextlib.suppress(OSError):  # the first number that the kernel does not know
        while True:
            if kernel.prctl(kernel.PR_CAPBSET_READ, number) and number not in keep:
                # Only the privileged may drop from it, and only they gain from it.
                with contextlib.suppress(OSError):
                    kernel.prctl(kernel.PR_CAPBSET_DROP, number)
            number += 1
