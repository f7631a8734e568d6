"""An arena in a GPU's memory, shared through CUDA's virtual memory management: the driver's calls, and torch on top.

Facts: the CUDA driver API's "Virtual Memory Management" and its header ``cuda.h``. Unverified on a GPU.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

from .. import device

_PINNED, _FILE_DESCRIPTOR, _ON_DEVICE, _READ_WRITE, _MINIMUM = 1, 1, 1, 3, 0
#: What a context and its libraries take for themselves; there are three at a time: the holder's and two runners'.
_CONTEXT_BYTES = 700 * 2**20
_CONTEXTS = 3
#: However full the weights make a GPU, a job's share is told as at least this; the driver refuses what is not there.
_LEAST_SHARE = 0.02


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = (("location", _Location), ("rights", ctypes.c_int))


class _Mapped:
    """Memory at an address, as torch takes it from others."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class Cuda:
    """The transport of :mod:`.arena` on the one GPU that this process sees."""

    def begin(self, gpu: str) -> None:
        """Make this process's context."""
        os.environ[device.VARIABLE] = gpu
        torch.cuda.init()
        if (count := torch.cuda.device_count()) != 1:
            raise RuntimeError(f"A replica runs on one GPU, and {device.VARIABLE}={gpu} gives it {count}.")
        torch.zeros(1, device="cuda")
        torch.cuda.seed()  # every process begins with the same seed
        self._driver = ctypes.CDLL("libcuda.so.1")

    def create(self, size_bytes: int) -> tuple[torch.Tensor, tuple[int, ...]]:
        """Allocate, map, and export as a descriptor."""
        wanted = _Properties(_PINNED, _FILE_DESCRIPTOR, _Location(_ON_DEVICE, 0))
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int()
        size = self._whole(size_bytes)
        self._call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(wanted), ctypes.c_uint64(0))
        given = (handle, ctypes.c_int(_FILE_DESCRIPTOR), ctypes.c_uint64(0))
        self._call("cuMemExportToShareableHandle", ctypes.byref(descriptor), *given)
        return self._map(handle, size, size_bytes), (descriptor.value,)

    def attach(self, descriptors: tuple[int, ...], size_bytes: int) -> torch.Tensor:
        """Import from the descriptor, and map."""
        (descriptor,) = descriptors
        handle = ctypes.c_uint64()
        given = (ctypes.c_void_p(descriptor), ctypes.c_int(_FILE_DESCRIPTOR))
        self._call("cuMemImportFromShareableHandle", ctypes.byref(handle), *given)
        os.close(descriptor)
        total = self.total_bytes()
        share = (total - size_bytes - _CONTEXTS * _CONTEXT_BYTES) / total
        # It keeps honest jobs from taking the other runner's room; what calls the driver itself is not held back.
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(_LEAST_SHARE, share)))
        return self._map(handle, self._whole(size_bytes), size_bytes)

    def total_bytes(self) -> int:
        """The GPU's memory."""
        return int(torch.cuda.get_device_properties(0).total_memory)

    def peak_bytes(self) -> int:
        """The most that torch's allocator has had in use."""
        return int(torch.cuda.max_memory_allocated())

    def _whole(self, size_bytes: int) -> ctypes.c_size_t:
        """A size in whole pages of the device."""
        wanted, page = _Properties(_PINNED, _FILE_DESCRIPTOR, _Location(_ON_DEVICE, 0)), ctypes.c_size_t()
        given = (ctypes.byref(wanted), ctypes.c_int(_MINIMUM))
        self._call("cuMemGetAllocationGranularity", ctypes.byref(page), *given)
        return ctypes.c_size_t(-(-size_bytes // page.value) * page.value)

    def _map(self, handle: ctypes.c_uint64, size: ctypes.c_size_t, size_bytes: int) -> torch.Tensor:
        address, access = ctypes.c_uint64(), _Access(_Location(_ON_DEVICE, 0), _READ_WRITE)
        nowhere, none = ctypes.c_uint64(0), ctypes.c_uint64(0)
        self._call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), nowhere, none)
        self._call("cuMemMap", address, size, ctypes.c_size_t(0), handle, none)
        self._call("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
        # The mapping keeps the memory for as long as this process lives.
        self._call("cuMemRelease", handle)
        return torch.as_tensor(_Mapped(address.value, size_bytes), device="cuda")

    def _call(self, name: str, *given: Any) -> None:
        result = getattr(self._driver, name)(*given)
        if result:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(result, ctypes.byref(text))
            raise RuntimeError(f"CUDA's {name} failed: {(text.value or b'unknown error').decode()}.")
