"""Fuzz cases, and the file that keeps them: what a hostile runner writes, how it ends, and the limits it meets.

Bytes are kept as text, one character a byte, so that a header can be read where it is stored; a part that repeats is
kept once, with its number of times.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).with_name("corpus.jsonl")

Part = tuple[str, int]


@dataclass(frozen=True)
class Case:
    """One conversation.

    Args:
        to: what reads it: ``answer`` (a frame and its bytes), ``packet`` or ``output``.
        writes: each written at once, as parts and how often each is repeated.
        end: ``stay`` (open and silent), ``close`` or ``reset``; of an output ``close``, ``drain`` (while it is open)
            or ``close, drain``.
        limits: of an answer the most bytes of a result; of an output the most bytes and the most lines.
        descriptors: how many go beside each packet.
        name: what the case shows.
    """

    to: str
    writes: tuple[tuple[Part, ...], ...]
    end: str
    limits: tuple[int, ...] = ()
    descriptors: int = 0
    name: str = ""

    def written(self) -> list[bytes]:
        """The bytes of each write."""
        return [b"".join(text.encode("latin-1") * times for text, times in parts) for parts in self.writes]


def brief(heard: object) -> str:
    """A text or lines, as they are compared and shown: what is long by its beginning, its length and its checksum."""
    text = repr(heard)
    return text if len(text) <= 100 else f"{text[:20]}... ({len(text)}, {zlib.crc32(text.encode())})"


def load() -> list[Case]:
    """Every case of the corpus."""
    return [_read(json.loads(line)) for line in CORPUS.read_text().splitlines()]


def save(cases: Iterable[Case]) -> None:
    """Make these the corpus, the smallest first: most mutants end at one of those."""
    ordered = sorted(cases, key=lambda case: (case.to, sum(map(len, case.written()))))
    CORPUS.write_text("".join(as_line(case) + "\n" for case in ordered))


def as_line(case: Case) -> str:
    """A case as the corpus keeps it."""
    writes = [[text if times == 1 else [text, times] for text, times in parts] for parts in case.writes]
    kept = {"name": case.name} | asdict(case) | {"writes": writes}
    return json.dumps({key: value for key, value in kept.items() if value or key == "writes"})


def _read(kept: dict[str, Any]) -> Case:
    writes = tuple(
        tuple((part, 1) if isinstance(part, str) else (part[0], part[1]) for part in parts) for parts in kept["writes"]
    )
    return Case(**(kept | {"writes": writes, "limits": tuple(kept.get("limits", ()))}))
