"""Plays a case against the host side over a real socket pair or pipe, and writes down all that can be heard of it.

The runner's next write is made when the host has read the last one, and nothing blocks: what would wait says so at
once, no thread is needed, and a case ends the same way every time.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import resource
import signal
import socket
import termios
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from .case import Case, brief

#: What the host may hold at once of what is sent: a header as bytes and as text, or a chunk of a result.
MOST_MEMORY_BYTES = 4 * 2**20
MOST_CPU_S = 5
PIPE_BYTES = 2**20
WRITE_BYTES = 2**16


@dataclass(frozen=True)
class Host:
    """The modules under test."""

    protocol: ModuleType
    output: ModuleType


class Hung(BaseException):
    """The host goes on for ever."""


def play(case: Case, host: Host) -> list[str]:
    """What is heard of the host, as the model says it."""
    written = case.written()
    said: list[str] = []
    tracemalloc.start()
    try:
        with _limited():
            {"answer": _answer, "packet": _packets, "output": _output}[case.to](case, written, host, said)
    except BlockingIOError:
        said.append("waits")
    except Hung:
        said.append("never ends")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if peak > MOST_MEMORY_BYTES:
        said.append("too much memory")
    return said


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """As much time and address space as no right host side needs, so that a wrong one ends."""

    def hung(number: int, frame: FrameType | None) -> None:
        raise Hung

    handler = signal.signal(signal.SIGVTALRM, hung)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 64 * MOST_MEMORY_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)


class Fed(socket.socket):
    """The host's end of a pair; the runner does its next thing whenever all it has written is read."""

    def feed(self, theirs: socket.socket, writes: Sequence[bytes | memoryview], case: Case) -> None:
        """Say what the runner is going to do."""
        self.theirs, self.writes, self.case = theirs, list(writes), case
        self.sent = self.taken = self.reads_at_end = 0

    def recv_into(self, *where: Any) -> int:
        self._next()
        got = super().recv_into(*where)
        self.taken += got
        return got

    def recvmsg(self, *size: int) -> Any:
        self._next()
        got = super().recvmsg(*size)
        self.taken += len(got[0])
        return got

    def _next(self) -> None:
        if self.taken < self.sent:
            return
        if self.writes:
            write = self.writes.pop(0)
            socket.send_fds(self.theirs, [write], [self.fileno()] * self.case.descriptors)
            self.sent += len(write)
            return
        if self.reads_at_end == 0 and self.case.end == "reset":
            self.sendall(b"never read")
        if self.case.end != "stay":
            self.theirs.close()
        self.reads_at_end += 1
        if self.reads_at_end > 3:
            raise Hung


@contextlib.contextmanager
def _fed(kind: socket.SocketKind, writes: Sequence[bytes | memoryview], case: Case) -> Iterator[Fed]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with Fed(fileno=ours.detach()) as fed, theirs:
        fed.setblocking(False)
        fed.feed(theirs, writes, case)
        yield fed


def _answer(case: Case, written: list[bytes], host: Host, said: list[str]) -> None:
    writes = [memoryview(write)[i : i + WRITE_BYTES] for write in written for i in range(0, len(write), WRITE_BYTES)]
    count = checksum = 0

    def sink(chunk: memoryview) -> None:
        nonlocal count, checksum
        count, checksum = count + len(chunk), zlib.crc32(chunk, checksum)

    with _fed(socket.SOCK_STREAM, writes, case) as sock:
        try:
            answer = host.protocol.receive_answer(sock, case.limits[0])
            if answer is None:
                said.append("gone")
            elif answer.type == "error":
                said.append(f"error: {brief(answer.description)}")
            else:
                said.append(f"{answer.type} of {answer.bytes}")
                host.protocol.receive_bytes(sock, answer.bytes, sink)
                said.append("all there")
        except BlockingIOError:
            said.append("waits")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        said += [f"{count} bytes passed on ({checksum})", f"{sock.taken} bytes taken"]


def _packets(case: Case, written: list[bytes], host: Host, said: list[str]) -> None:
    with _fed(socket.SOCK_SEQPACKET, written, case) as sock:
        while (packet := host.protocol.receive_packet(sock)) is not None:
            for descriptor in packet[1]:
                os.close(descriptor)
            said.append(f"{packet[0]} and {len(packet[1])} descriptors")
        said.append("gone")


def _output(case: Case, written: list[bytes], host: Host, said: list[str]) -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    # As a hostile runner may: more fits than is read at once.
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    output = host.output.Output(read, *case.limits)

    def hear(lines: list[str] | None) -> bool:
        said.append(f"{brief(lines)}{', over' if output.over else ''}")
        return lines is not None

    with os.fdopen(read, "rb"), os.fdopen(write, "wb", buffering=0) as pipe:
        for data in written:
            pipe.write(data)
            hear(output.lines())
        if case.end.startswith("close"):
            pipe.close()
        if case.end.endswith("drain"):
            hear(output.drain())
            left = array.array("i", [0])
            fcntl.ioctl(read, termios.FIONREAD, left)
            said.append(f"{left[0]} bytes left")
        elif not any(not hear(output.lines()) for _ in range(PIPE_BYTES // WRITE_BYTES + 3)):
            raise Hung
