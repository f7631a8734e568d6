"""What a block prints: bytes from a pipe, cut into lines, counted against the job's limits."""

from __future__ import annotations

import os
import re

READ_BYTES = 64 * 1024
MAX_LINE_BYTES = 16 * 1024


class Output:
    """Reads one runner's output pipe without ever waiting, and gives no more of it than the job may print.

    The lines are the same however the bytes come: a longer line than ``MAX_LINE_BYTES`` is given in pieces of that.
    """

    def __init__(self, descriptor: int, max_bytes: int, max_lines: int) -> None:
        self._descriptor = descriptor
        self._left_bytes = max_bytes
        self._left_lines = max_lines
        self._partial = b""
        self._returned = False

    @property
    def over(self) -> bool:
        """Whether the job has printed more than it may."""
        return self._left_bytes < 0 or self._left_lines < 0

    def lines(self) -> list[str] | None:
        """The lines that end in what one read brings; None at the end of the pipe, behind a last one without an end."""
        data = self._read()
        if data == b"":
            return self._rest() or None
        return self._cut(data) if data else []

    def drain(self) -> list[str]:
        """Every line still in the pipe, and a last one without an end."""
        found: list[str] = []
        while not self.over and (data := self._read()):
            found += self._cut(data)
        return found + self._rest()

    def _read(self) -> bytes | None:
        try:
            return os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return None

    def _cut(self, data: bytes) -> list[str]:
        allowed = data[: max(0, self._left_bytes)]
        self._left_bytes -= len(data)
        if self._returned:
            allowed = allowed.removeprefix(b"\n")
        *ended, self._partial = re.split(rb"(\r?\n|\r)", self._partial + allowed)
        # A carriage return ends a line too, as progress bars use it, but does not make an empty one.
        pieces = [text for text, end in zip(ended[::2], ended[1::2], strict=True) if text or end != b"\r"]
        # Such a line is given at once; the newline that may come behind has then ended it already.
        self._returned = not self._partial and ended[-1:] == [b"\r"] and ended[-2] != b""
        while len(self._partial) > MAX_LINE_BYTES:
            pieces.append(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]
        return self._count(pieces)

    def _rest(self) -> list[str]:
        rest, self._partial = self._partial, b""
        return self._count([rest] if rest else [])

    def _count(self, pieces: list[bytes]) -> list[str]:
        lines = [
            piece[i : i + MAX_LINE_BYTES].decode("utf-8", "backslashreplace")
            for piece in pieces
            for i in range(0, max(1, len(piece)), MAX_LINE_BYTES)
        ]
        allowed = lines[: max(0, self._left_lines)]
        self._left_lines -= len(lines)
        return allowed
