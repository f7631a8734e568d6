"""What a block prints: bytes from a pipe, cut into lines, counted against the job's limits."""

from __future__ import annotations

import os
import re

MAX_LINE_BYTES = 16 * 1024


class Output:
    """Reads one runner's output pipe without ever waiting."""

    def __init__(self, descriptor: int, max_bytes: int, max_lines: int) -> None:
        self._descriptor = descriptor
        self._left_bytes = max_bytes
        self._left_lines = max_lines
        self._partial = b""

    @property
    def over(self) -> bool:
        """Whether the job has printed more than it may."""
        return self._left_bytes < 0 or self._left_lines < 0

    def lines(self, rest: bool = False) -> list[str] | None:
        """The lines there now, at most what one read brings; None at the end of the pipe.

        Args:
            rest: also give a last line that has no end.
        """
        try:
            data = os.read(self._descriptor, 64 * 1024)
        except BlockingIOError:
            data = None
        if data == b"" and not self._partial:
            return None
        if data:
            self._left_bytes -= len(data)
            self._partial += data
        return self._cut(rest or data == b"")

    def drain(self) -> list[str]:
        """Every line still in the pipe, within the limits."""
        found: list[str] = []
        while not self.over:
            lines = self.lines()
            if not lines:
                break
            found += lines
        return found + (self._cut(rest=True) if not self.over else [])

    def _cut(self, rest: bool) -> list[str]:
        *ended, self._partial = re.split(rb"(\r?\n|\r)", self._partial)
        # A carriage return ends a line too, as progress bars use it, but does not make an empty one.
        pieces = [text for text, end in zip(ended[::2], ended[1::2], strict=True) if text or end != b"\r"]
        if (rest and self._partial) or len(self._partial) > MAX_LINE_BYTES:
            pieces.append(self._partial)
            self._partial = b""
        lines = [
            piece[i : i + MAX_LINE_BYTES].decode("utf-8", "backslashreplace")
            for piece in pieces
            for i in range(0, max(1, len(piece)), MAX_LINE_BYTES)
        ]
        self._left_lines -= len(lines)
        return lines
