"""Moving bytes by presigned URL, a chunk at a time: memory does not grow with their size.

No proxy of the environment stands between the farm and its own store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import urljoin

import httpx

from ndif_models.errors import Unavailable

CHUNK_BYTES = 2**20
_TIMEOUT = httpx.Timeout(120, connect=10)


class StoreAway(Unavailable):
    """The object store was not reached, or was not itself; it may be soon."""


def upload(url: str, chunks: Iterable[bytes], size: int, *, verify: bool) -> None:
    """PUT exactly ``size`` bytes.

    Raises:
        StoreAway: the store is not there now.
        Unavailable: it did not take them.
    """
    try:
        with _client(verify) as client:
            client.put(url, content=chunks, headers={"Content-Length": str(size)}).raise_for_status()
    except httpx.HTTPError as error:
        raise _refusal(error, "The farm's object store cannot take the bytes now; send the job again.") from None


@contextmanager
def download(url: str, *, verify: bool) -> Iterator[tuple[int, Iterator[bytes]]]:
    """GET an object: its size, and its bytes in chunks.

    Raises:
        StoreAway: the store is not there now.
        Unavailable: it did not give them.
    """
    try:
        with _client(verify) as client, client.stream("GET", url) as response:
            response.raise_for_status()
            yield int(response.headers["content-length"]), response.iter_raw(CHUNK_BYTES)
    except httpx.HTTPError as error:
        raise _refusal(error, "The farm's object store cannot give the bytes now; send the job again.") from None


def answers(url: str, *, verify: bool) -> bool:
    """Whether the store of a URL is there and itself."""
    try:
        with _client(verify) as client:
            return client.get(urljoin(url, "/")).status_code < 500
    except httpx.HTTPError:
        return False


def _refusal(error: httpx.HTTPError, sentence: str) -> Unavailable:
    told = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
    return Unavailable(sentence) if told else StoreAway(sentence)


def _client(verify: bool) -> httpx.Client:
    # httpx logs whole URLs, and whoever holds one of these may use it.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return httpx.Client(timeout=_TIMEOUT, trust_env=False, verify=verify)
