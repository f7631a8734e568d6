"""The supervisor's ear: a Unix socket in the session folder that takes one JSON line and answers with one."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from ndif_models.errors import Conflict, NdifError, Unavailable

_NAME = "control.sock"
_LINE_BYTES = 64 * 1024
_ANSWER_LIMIT_S = 120.0

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class Channel:
    """The listening end, held by the supervisor."""

    def __init__(self, session_dir: Path, answer: Answer) -> None:
        self._path = session_dir / _NAME
        self._answer = answer
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Channel:
        self._path.unlink(missing_ok=True)
        with _short(self._path) as path:
            self._server.bind(path)
        self._server.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self._path.unlink(missing_ok=True)

    def serve(self, stopped: int) -> None:
        """Answer until ``stopped`` becomes readable."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(stopped, selectors.EVENT_READ)
            while True:
                events = [key.fileobj for key, _ in selector.select()]
                if stopped in events:
                    return
                connection, _ = self._server.accept()
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(_ANSWER_LIMIT_S)
            request = json.loads(connection.makefile("rb").readline(_LINE_BYTES))
            try:
                reply = self._answer(request)
            except NdifError as error:
                reply = {"error": str(error)}
            connection.sendall(json.dumps(reply).encode() + b"\n")


def ask(session_dir: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Send the supervisor of a session one request.

    Raises:
        Unavailable: no supervisor listens.
        Conflict: it refused; the sentence is its own.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_ANSWER_LIMIT_S)
        try:
            with _short(session_dir / _NAME) as path:
                client.connect(path)
            client.sendall(json.dumps(request).encode() + b"\n")
            reply: dict[str, Any] = json.loads(client.makefile("rb").readline(_LINE_BYTES))
        except (OSError, ValueError):
            raise Unavailable("The farm's supervisor does not answer; it is starting or stopping.") from None
    if "error" in reply:
        raise Conflict(reply["error"])
    return reply


@contextlib.contextmanager
def _short(path: Path) -> Any:
    """A name for a socket that fits the 108 bytes a socket's address may have, wherever the session is."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
