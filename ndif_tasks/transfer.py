"""Moving bytes by presigned URL, a chunk at a time: memory does not grow with their size.

No proxy of the environment stands between the farm and its own store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import httpx

from ndif_models.errors import Unavailable

CHUNK_BYTES = 2**20
_TIMEOUT = httpx.Timeout(120, connect=10)


def upload(url: str, chunks: Iterable[bytes], size: int, *, verify: bool) -> None:
    """PUT exactly ``size`` bytes.

    Raises:
        Unavailable: the store did not take them.
    """
    try:
        with _client(verify) as client:
            client.put(url, content=chunks, headers={"Content-Length": str(size)}).raise_for_status()
    except httpx.HTTPError:
        raise Unavailable("The farm's object store cannot take the bytes now; send the job again.") from None


@contextmanager
def download(url: str, *, verify: bool) -> Iterator[tuple[int, Iterator[bytes]]]:
    """GET an object: its size, and its bytes in chunks.

    Raises:
        Unavailable: the store did not give them.
    """
    try:
        with _client(verify) as client, client.stream("GET", url) as response:
            response.raise_for_status()
            yield int(response.headers["content-length"]), response.iter_raw(CHUNK_BYTES)
    except httpx.HTTPError:
        raise Unavailable("The farm's object store cannot give the bytes now; send the job again.") from None


def _client(verify: bool) -> httpx.Client:
    # httpx logs whole URLs, and whoever holds one of these may use it.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return httpx.Client(timeout=_TIMEOUT, trust_env=False, verify=verify)
