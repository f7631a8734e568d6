"""A thin client: sends a recorded request again and waits for its COMPLETED frame. Never imports torch or nnsight."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from types import TracebackType

import httpx
import websocket

_SESSION = re.compile(rb's-[0-9A-Za-z_-]+(?=")')
_PASSED_ON = ("content-type", "nnsight-version", "python-version", "ndif-timestamp")


@dataclass
class Recorded:
    """A request as a real client sent it, and the frame that answered it."""

    headers: dict[str, str]
    body: bytes
    frame: bytes = b""


class Sender:
    """One session and one connection, both kept."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60)
        self._socket = websocket.create_connection(f"{url.replace('http', 'ws', 1)}/subscribe", timeout=60)
        self._session = json.loads(self._socket.recv())["session_id"].encode()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._socket.close()
        self._http.close()

    def send(self, request: Recorded) -> bytes:
        """Send it and wait; returns the COMPLETED frame."""
        body = _SESSION.sub(self._session, request.body, count=1)
        headers = {name: request.headers[name] for name in _PASSED_ON}
        self._http.post("/request", content=body, headers=headers).raise_for_status()
        while True:
            message = self._socket.recv()
            if isinstance(message, bytes):
                return message
            update = json.loads(message)
            assert update["status"] not in ("ERROR", "COMPLETED"), update
