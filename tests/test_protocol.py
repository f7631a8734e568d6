"""Frames between a replica and a runner, where the runner lies."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndif_models.errors import WireError
from ndif_tasks.sandbox import protocol

LIMIT = 1000
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The replica's end and the runner's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def frame(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("!I", len(text) if length is None else length) + text


def answer_to(sent: bytes) -> protocol.Answer | None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        return protocol.receive_answer(ours, LIMIT)


def test_an_answer_and_its_bytes_arrive(pair: Pair) -> None:
    ours, theirs = pair
    protocol.send_header(theirs, protocol.Answer(type="result", bytes=5))
    theirs.sendall(b"12345")
    answer = protocol.receive_answer(ours, LIMIT)
    assert answer is not None and answer.type == "result"
    body = bytearray()
    protocol.receive_bytes(ours, answer.bytes, body.extend)
    assert body == b"12345"


def test_a_request_arrives(pair: Pair) -> None:
    ours, theirs = pair
    request = protocol.Request(compress=True, env={"peft": "a/b"}, bytes=2)
    protocol.send_header(ours, request)
    assert protocol.receive_request(theirs) == request


@pytest.mark.parametrize("sent", [b"", b"\0", b"\0\0\0", frame(b"{}", 100), frame(b"")[:3]])
def test_an_early_end_is_no_answer(sent: bytes) -> None:
    assert answer_to(sent) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"type": "other"}',
        b'{"type": "result", "bytes": -1}',
        b'{"type": "result", "bytes": "5"}',
        b'{"type": "result", "bytes": 1.5}',
        b'{"type": "result", "bytes": true}',
        b'{"type": "result", "more": 1}',
        b'{"type": "error", "description": 5}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_answer_breaks_the_connection_with_a_sentence(text: bytes) -> None:
    with pytest.raises(WireError, match="broke the connection"):
        answer_to(frame(text))


def test_a_header_that_claims_to_be_huge_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError):
        answer_to(frame(b"", protocol.MAX_HEADER_BYTES + 1))
    with pytest.raises(WireError):
        answer_to(frame(b"", 2**32 - 1))


@pytest.mark.parametrize("count", [LIMIT + 1, 2**40, 10**30])
def test_a_result_over_the_limit_is_refused_before_it_is_read(count: int) -> None:
    with pytest.raises(WireError):
        answer_to(frame(b'{"type": "result", "bytes": %d}' % count))


def test_a_result_that_ends_early_is_said_so() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"123")
        theirs.close()
        with pytest.raises(WireError, match="while its values were being sent"):
            protocol.receive_bytes(ours, 5, bytearray().extend)


def test_bytes_behind_the_announced_ones_are_left(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"12345more")
    body = bytearray()
    protocol.receive_bytes(ours, 5, body.extend)
    assert body == b"12345"


@given(st.binary(max_size=300))
def test_any_bytes_are_an_answer_an_end_or_a_sentence(sent: bytes) -> None:
    try:
        answer_to(sent)
    except WireError as error:
        assert str(error)


def test_a_packet_carries_descriptors(pair: Pair) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        protocol.send_packet(ours, {"op": "fork"}, (pair[0].fileno(),))
        packet = protocol.receive_packet(theirs)
        assert packet is not None
        with socket.socket(fileno=packet[1][0]) as copy:
            copy.sendall(b"x")
        assert packet[0] == {"op": "fork"}
        assert pair[1].recv(1) == b"x"


def test_a_packet_socket_that_ends_says_so() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        theirs.close()
        assert protocol.receive_packet(ours) is None
