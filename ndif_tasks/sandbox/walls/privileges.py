"""No capabilities, now or ever: the set a process has, the ones it could get by executing a file, and the way there."""

from __future__ import annotations

import ctypes
import os

from . import Refused

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 23, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def raise_wall() -> None:
    """Give up every capability and every way to new ones.

    Raises:
        Refused: the kernel does not do it.
    """
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise Refused(f"no new privileges: {os.strerror(ctypes.get_errno())}")
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    number = 0
    while (held := _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0)) >= 0:
        if held:  # only the privileged may drop from the bounding set, and only they gain from it
            _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
        number += 1
    if _libc.capset(ctypes.byref(_Header(_CAPABILITY_VERSION_3, 0)), ctypes.byref((_Sets * 2)())) != 0:
        raise Refused(f"capabilities: {os.strerror(ctypes.get_errno())}")
