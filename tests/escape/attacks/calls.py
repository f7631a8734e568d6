"""How attacks reach what Python has no name for: functions of the C library, system calls, and native code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Target = dict[str, Any]
Attack = Callable[[Target], object]


def call(name: str, *given: Any) -> int:
    """A function of the C library; raises what its errno says."""
    import ctypes
    import os

    answer = int(getattr(ctypes.CDLL(None, use_errno=True), name)(*given))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def system_call(number: int, *given: Any) -> int:
    """A system call by its number on x86-64; whole numbers are passed as 64 bits."""
    import ctypes

    return call("syscall", ctypes.c_long(number), *(ctypes.c_long(g) if isinstance(g, int) else g for g in given))


def native(code: bytes) -> int:
    """Run machine code that ends with a return; raises what a system call's answer in it says."""
    import ctypes
    import mmap
    import os

    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    place = ctypes.c_char.from_buffer(page)
    answer = int(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(place))())
    if answer < 0:
        raise OSError(-answer, os.strerror(-answer))
    return answer


def piece(address: int, size: int) -> Any:
    """A pointer to what process_vm_readv and process_vm_writev take: where, and how much."""
    import ctypes

    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

    return ctypes.pointer(Piece(address, size))


def demand(found: object, what: str) -> object:
    """What was found, or the error of an attack that reached something else than it aimed at."""
    if not found:
        raise FileNotFoundError(what)
    return found
