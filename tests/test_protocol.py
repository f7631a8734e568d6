"""Frames and packets between those that keep to them; ``fuzz`` has those that do not."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ndif_tasks.sandbox import protocol

LIMIT = 1000
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The replica's end and the runner's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


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
