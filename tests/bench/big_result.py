"""A result of 256 MiB end to end, against the same steps by hand, raw and compressed.

The farm's side: a remote trace by the stock client, from its start until the values are in the caller's frame, less
the time in which the block made them (it times that itself, and saves it). Everything else is in it: the client's
packing and its HTTP clients, queue, runner, object store.

By hand, in this one process, with the same values ready in memory: ``torch.save`` into memory, zstd at the farm's
level if compressed, one PUT to the farm's object store in 1 MiB chunks and one GET from it in the client's 128 KiB
ones (both on presigned URLs, made beforehand), decompression, ``torch.load``. Nothing is done twice or in parallel.

The values are normal random floats, which compress by a few per cent. Meanwhile the resident memory of the web tier's
processes is looked at every 20 ms; its growth is the highest sum above the one before.
"""

from __future__ import annotations

import gc
import io
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import httpx
import psutil

from ndif_models.keys import new_id
from ndif_models.settings import load
from ndif_tasks.store import Store, result_object
from ndif_tasks.transfer import CHUNK_BYTES, upload
from tests import models
from tests.farm import Farm

from .bench import Bench, seconds
from .rows import Row, percentile

ROUNDS = 3
VALUES = 2**26  # float32: 256 MiB
CLIENT_CHUNK_BYTES = 128 * 1024
TARGET_RATIO = 1.3
TARGET_GROWTH_MIB = 64


def run(bench: Bench) -> Iterator[Row]:
    """Measure."""
    there = bench.remote(models.GPT2)
    remotely(there)
    with Memory(bench.farm) as memory:
        for compress in (False, True):
            bench.client.CONFIG.API.COMPRESS = compress
            name = "big_result_zstd" if compress else "big_result_raw"
            pairs = [_round(bench, there, compress) for _ in range(ROUNDS)]
            yield Row(name, percentile([farm / hand for farm, hand in pairs], 50), "times", at_most=TARGET_RATIO)
            yield Row(f"{name}_farm", percentile([farm for farm, _ in pairs], 50), "s")
            yield Row(f"{name}_by_hand", percentile([hand for _, hand in pairs], 50), "s")
    yield Row("web_memory_growth", memory.growth_mib, "MiB", at_most=TARGET_GROWTH_MIB)


def _round(bench: Bench, there: Any, compress: bool) -> tuple[float, float]:
    import torch

    gc.collect()
    farm_s = remotely(there)
    values = torch.randn(VALUES)
    store = Store(load(environ=bench.farm.variables, running_session=False))
    key = result_object(new_id(), 1)
    urls = store.put_url(key), store.get_url(key)
    return farm_s, seconds(lambda: by_hand(values, compress, *urls))


def remotely(model: Any) -> float:
    """Seconds that the farm takes beside making the values."""
    import nnsight
    import torch

    began = time.perf_counter()
    with model.trace("a", remote=True):
        start = time.perf_counter()
        values = torch.randn(VALUES)
        making_s = nnsight.save(time.perf_counter() - start)
        nnsight.save(values)
    took_s = time.perf_counter() - began
    assert values.shape == (VALUES,)
    return took_s - float(making_s)


def by_hand(values: Any, compress: bool, put_url: str, get_url: str) -> None:
    """The steps a person would write who had an object store and no farm."""
    import torch
    import zstandard

    from ndif_tasks.sandbox.runner import ZSTD_LEVEL

    buffer = io.BytesIO()
    torch.save({"values": values}, buffer)
    body = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(buffer.getbuffer()) if compress else buffer.getvalue()
    upload(put_url, _chunks(body), len(body), verify=True)
    fetched = io.BytesIO()
    with httpx.stream("GET", get_url, timeout=60) as response:
        response.raise_for_status()
        for chunk in response.iter_bytes(CLIENT_CHUNK_BYTES):
            fetched.write(chunk)
    content = fetched.getvalue()
    if compress:
        content = zstandard.ZstdDecompressor().decompress(content)
    found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    assert found["values"].shape == values.shape


def _chunks(body: bytes) -> Iterator[bytes]:
    # In one piece httpx would copy what is left of it at every send, and the farm would win by that alone.
    for start in range(0, len(body), CHUNK_BYTES):
        yield body[start : start + CHUNK_BYTES]


class Memory:
    """The web tier's memory while something goes on."""

    def __init__(self, farm: Farm) -> None:
        self._processes = psutil.Process(farm.service_pid("api")).children(recursive=True)
        self._before = self._peak = self._now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def growth_mib(self) -> float:
        """How far it rose above where it was."""
        return (self._peak - self._before) / 2**20

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self._peak = max(self._peak, self._now())

    def _now(self) -> int:
        return sum(process.memory_info().rss for process in self._processes)
