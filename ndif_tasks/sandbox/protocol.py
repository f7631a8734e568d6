"""How a replica talks to its zygote and its runners. What comes from a runner is hostile: capped, checked, opaque.

A frame is a 4-byte big-endian length, that much JSON, then as many raw bytes as the JSON's ``bytes`` says.
Must not import torch: the replica uses this too.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ndif_models.errors import WireError

MAX_HEADER_BYTES = 512 * 1024
CHUNK_BYTES = 2**20
#: The exit status of a runner that could not be made ready for any job: sysexits' EX_OSERR.
UNPREPARED = 71
_LENGTH = struct.Struct("!I")


class Request(BaseModel):
    """What a runner is given: how to read the payload, what to ask of the model, where the adapter named there lies,
    what the block may take (0: no limit) and import (None: everything)."""

    compress: bool
    env: dict[str, Any]
    adapter: str | None = None
    memory_bytes: int = 0
    cpu_s: int = 0
    threads: int = 0
    open_files: int = 0
    modules: list[str] | None = None
    scratch_bytes: int = 0
    bytes: int


class Answer(BaseModel):
    """What a runner may say, once: that so many bytes of result follow, or a description of its failure; and how much
    it took of a GPU, which is its word alone."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["result", "error"]
    description: str = ""
    bytes: int = Field(default=0, ge=0)
    gpu_bytes: int = Field(default=0, ge=0, le=2**60)


def send_header(sock: socket.socket, header: BaseModel) -> None:
    """Send one frame's header; its raw bytes follow with ``sendall``."""
    text = header.model_dump_json().encode()
    sock.sendall(_LENGTH.pack(len(text)) + text)


def receive_request(sock: socket.socket) -> Request | None:
    """The runner's side: the request's header, or None when the replica is gone."""
    text = _receive_text(sock)
    return None if text is None else Request.model_validate_json(text)


def receive_answer(sock: socket.socket, max_result_bytes: int) -> Answer | None:
    """The replica's side: the answer's header, or None when the runner is gone.

    Raises:
        WireError: the runner sent something that is no answer.
    """
    text = _receive_text(sock)
    if text is None:
        return None
    try:
        answer = Answer.model_validate_json(text)
    except ValidationError:
        raise WireError("The block broke the connection its values return by.") from None
    if answer.bytes > max_result_bytes:
        raise WireError(
            f"The saved values take {answer.bytes} bytes and may take {max_result_bytes}; save less, or reduce first."
        )
    return answer


def receive_bytes(sock: socket.socket, count: int, sink: Callable[[memoryview], object]) -> None:
    """Pass exactly ``count`` bytes on to ``sink``, a chunk at a time.

    Raises:
        WireError: the other end stopped early.
    """
    buffer = memoryview(bytearray(min(count, CHUNK_BYTES)))
    while count:
        got = _receive(sock, buffer[: min(count, len(buffer))])
        if not got:
            raise WireError("The block ended while its values were being sent.")
        sink(buffer[:got])
        count -= got


def _receive_text(sock: socket.socket) -> bytes | None:
    head = _receive_exactly(sock, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_HEADER_BYTES:
        raise WireError("The block broke the connection its values return by.")
    return _receive_exactly(sock, length)


def _receive_exactly(sock: socket.socket, count: int) -> bytes | None:
    buffer = bytearray(count)
    view = memoryview(buffer)
    filled = 0
    while filled < count:
        got = _receive(sock, view[filled:])
        if not got:
            return None
        filled += got
    return bytes(buffer)


def _receive(sock: socket.socket, view: memoryview) -> int:
    try:
        return sock.recv_into(view)
    except ConnectionError:
        return 0


# Between a replica and its zygote: one JSON object a packet, with descriptors beside it.

MAX_PACKET_BYTES = 128 * 1024


def send_packet(sock: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send one control message, and copies of descriptors."""
    socket.send_fds(sock, [json.dumps(message).encode()], descriptors)


def receive_packet(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """One control message and its descriptors, or None when the other end is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, MAX_PACKET_BYTES, 4)
    except ConnectionError:
        return None
    return (json.loads(data), descriptors) if data else None
