"""A farm that does nothing: it answers every request at once with one canned COMPLETED frame.

What a client spends on it is the client's own: the floor to subtract before judging the farm. A process of its own,
plain threads and sockets, no framework. It also keeps the last request it was sent, which is how real payloads are
recorded. Imports only the standard library.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import socket
import struct
import subprocess
import sys
import threading
from types import TracebackType
from typing import BinaryIO

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _BINARY, _CLOSE = 1, 2, 8
_RECEIVED = b'{"id": "null", "status": "RECEIVED", "description": "", "data": null, "meta": null}'
_ERROR = b'{"id": "null", "status": "ERROR", "description": "recorded", "data": null, "meta": null}'


class NullFarm:
    """The process, seen from the benchmark: ``with NullFarm() as null``."""

    def __init__(self) -> None:
        argv = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> NullFarm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def answer_with(self, frame: bytes) -> None:
        """Answer requests with this frame from now on; an empty one makes it an ERROR, so that clients only record."""
        self._ask("PUT", "/frame", frame)

    def recorded(self) -> tuple[dict[str, str], bytes]:
        """Headers (names in small letters) and body of the last request."""
        head, _, body = self._ask("GET", "/recorded").partition(b"\0")
        return json.loads(head), body

    def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = sock.makefile("rb").read()
        return answer.partition(b"\r\n\r\n")[2]


class _Server:
    def __init__(self) -> None:
        self.frame = b""
        self.recorded = b""
        self.sessions: dict[str, socket.socket] = {}

    def run(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        print(listener.getsockname()[1], flush=True)
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as file:
            request = file.readline().decode()
            headers = dict(_headers(file))
            if request.startswith("GET /subscribe"):
                self._subscribe(sock, file, headers)
            elif request.startswith("POST /request"):
                self._request(sock, file.read(int(headers["content-length"])), headers)
            elif request.startswith("PUT /frame"):
                self.frame = file.read(int(headers["content-length"]))
                _reply(sock, b"")
            else:
                _reply(sock, self.recorded)

    def _subscribe(self, sock: socket.socket, file: BinaryIO, headers: dict[str, str]) -> None:
        # As long as the farm's own ids, so that a recorded body fits a real session by replacing one with the other.
        session = "s-" + secrets.token_hex(32)
        self.sessions[session] = sock
        accept = base64.b64encode(hashlib.sha1(headers["sec-websocket-key"].encode() + _GUID).digest())
        upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        hello = _websocket_frame(_TEXT, json.dumps({"session_id": session}).encode())
        sock.sendall(upgrade + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + hello)
        file.read(1)  # the client says nothing before its close
        del self.sessions[session]
        sock.sendall(_websocket_frame(_CLOSE, struct.pack("!H", 1000)))

    def _request(self, sock: socket.socket, body: bytes, headers: dict[str, str]) -> None:
        self.recorded = json.dumps(headers).encode() + b"\0" + body
        found = re.search(rb'"session_id":\s*"([^"]+)"', body)
        _reply(sock, _RECEIVED, "application/json")
        if found is not None:
            update = _websocket_frame(_BINARY, self.frame) if self.frame else _websocket_frame(_TEXT, _ERROR)
            self.sessions[found[1].decode()].sendall(update)


def _headers(file: BinaryIO) -> list[tuple[str, str]]:
    lines = iter(lambda: file.readline().decode().strip(), "")
    return [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]


def _reply(sock: socket.socket, body: bytes, kind: str = "application/octet-stream") -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    sock.sendall(head.encode() + body)


def _websocket_frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, size)
    elif size < 2**16:
        head = struct.pack("!BBH", 0x80 | opcode, 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 127, size)
    return head + payload


if __name__ == "__main__":
    _Server().run()
