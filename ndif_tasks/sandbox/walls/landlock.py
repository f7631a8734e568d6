"""Landlock: which files this process may reach, no TCP, and no signal or abstract socket out of it.

Facts: the kernel's ``Documentation/userspace-api/landlock.rst``. No kept package does it, so this speaks to the kernel.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .. import kernel
from . import Refused

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_O_PATH = os.O_PATH | os.O_CLOEXEC

_WRITE_FILE, _READ_FILE, _READ_DIR = 2, 4, 8
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_FILE, _MAKE_LINK = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
_MOVE, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READ = _READ_FILE | _READ_DIR
_USE = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_FILE | _MAKE_LINK | _MOVE | _TRUNCATE
#: What there is no other right for on something that is not a directory.
_ON_FILES = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
#: The newest right on files of each version.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
#: Or each refusal would write what a job chose into the audit log of the host.
_NO_RECORDS, _RECORDS_SINCE = 1, 7
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract unix sockets and signals


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The version of Landlock that this kernel speaks.

    Raises:
        Refused: none.
    """
    return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)


def raise_wall(readable: Iterable[Path], writable: Iterable[Path]) -> str:
    """From now on this process, its threads and children reach only these paths and what is beneath them.

    Args:
        readable: what may be read, and mapped as a library; paths that are not there are passed over.
        writable: devices that may be read and written, and folders in which files may be made and removed too.

    Raises:
        Refused: the kernel speaks no Landlock, or does not do it.
    """
    speaks = version()
    handled = (1 << _FILE_RIGHTS[min(speaks, max(_FILE_RIGHTS))]) - 1
    network = _TCP if speaks >= _NETWORK_SINCE else 0
    scopes = _SCOPES if speaks >= _SCOPES_SINCE else 0
    rules = _Ruleset(handled, network, scopes)
    ruleset = _call(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), 0)
    try:
        for path in readable:
            _allow(ruleset, path, handled & _READ)
        for path in writable:
            _allow(ruleset, path, handled & (_USE | _IOCTL_DEV))
        _call(_RESTRICT_SELF, ruleset, _NO_RECORDS if speaks >= _RECORDS_SINCE else 0)
    finally:
        os.close(ruleset)
    lacks = [what for what, there in (("TCP", network), ("signals and abstract sockets", scopes)) if not there]
    return f"version {speaks} does not hold back {' and '.join(lacks)}" if lacks else ""


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, _O_PATH)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= _ON_FILES
        _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(_Beneath(rights, place)), 0)
    finally:
        os.close(place)


def _call(number: int, *given: Any) -> int:
    try:
        return kernel.call(number, *given)
    except OSError as error:
        raise Refused(f"Landlock: {error.strerror}") from None
