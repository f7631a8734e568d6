"""A small Valkey for tests that need a broker and no farm: a socket in a temporary folder, gone with its context."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.exceptions import ConnectionError

from ndif_web.cli.binaries import valkey_server


@contextmanager
def valkey(folder: Path) -> Iterator[Redis]:
    """A connection to a fresh server, which ends with the context."""
    place = folder / "valkey.sock"
    argv = [str(valkey_server()), "--port", "0", "--unixsocket", str(place), "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    client = Redis(unix_socket_path=str(place))
    try:
        _wait(client)
        yield client
    finally:
        client.close()
        server.terminate()
        server.wait(10)


def _wait(client: Redis) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
            return
        except (ConnectionError, FileNotFoundError):
            assert time.monotonic() < deadline, "valkey-server does not answer"
            time.sleep(0.02)
