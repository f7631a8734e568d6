"""What must come out of each case, said a second time and as simply as can be: on whole streams, without sockets.

Must not import the code under test, nor take a number or a sentence from it.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from .case import Case, brief

BROKE = "WireError: The block broke the connection its values return by."
STOPPED = "WireError: The block ended while its values were being sent."
LARGE = "WireError: The saved values take {} bytes and may take {}; save less, or reduce first."

LONGEST_HEADER = 524_288
LONGEST_LINE = 16_384
ONE_READ = 65_536
DEEPEST = 200
MOST_OF_A_GPU = 2**60


def expected(case: Case) -> list[str]:
    """What a player hears."""
    return {"answer": _answer, "packet": _packets, "output": _output}[case.to](case)


def _answer(case: Case) -> list[str]:
    sent = b"".join(case.written())
    said, body, taken = _conversation(sent, case.end == "stay", case.limits[0])
    return [*said, f"{len(body)} bytes passed on ({zlib.crc32(body)})", f"{taken} bytes taken"]


def _conversation(sent: bytes, waits: bool, most: int) -> tuple[list[str], bytes, int]:
    """What is said, what is passed on, and how much of the stream is taken for it."""
    length = int.from_bytes(sent[:4], "big")
    text, behind = sent[4 : 4 + length], sent[4 + length :]
    if len(sent) >= 4 and length > LONGEST_HEADER:
        return [BROKE], b"", 4
    if len(sent) < 4 or len(text) < length:
        return ["waits" if waits else "gone"], b"", len(sent)
    answer = _parsed(text)
    count = answer.get("bytes", 0)
    if not answer:
        said = BROKE
    elif count > most:
        said = LARGE.format(count, most)
    elif answer["type"] == "error":
        said = f"error: {brief(answer.get('description', ''))}"
    elif count <= len(behind):
        return [f"result of {count}", "all there"], behind[:count], 4 + length + count
    else:
        return [f"result of {count}", "waits" if waits else STOPPED], behind, len(sent)
    return [said], b"", 4 + length


def _parsed(text: bytes) -> dict[str, Any]:
    """The fields of an answer; none if it is no answer."""
    try:
        pairs = json.loads(text.decode(), object_pairs_hook=tuple)
        json.dumps(pairs, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        return {}
    # Even where a later value of the same key takes its place. In no case are there so many and yet not so deep.
    too_deep = text.count(b"[") + text.count(b"{") > DEEPEST
    fields = dict(pairs) if isinstance(pairs, tuple) and not too_deep else {}
    right = (
        set(fields) <= {"type", "description", "bytes", "gpu_bytes"}
        and fields.get("type") in ("result", "error")
        and type(fields.get("description", "")) is str
        and type(fields.get("bytes", 0)) is int
        and fields.get("bytes", 0) >= 0
        and type(fields.get("gpu_bytes", 0)) is int
        and 0 <= fields.get("gpu_bytes", 0) <= MOST_OF_A_GPU
    )
    return fields if right else {}


def _packets(case: Case) -> list[str]:
    said: list[str] = []
    for packet in case.written():
        if not packet:
            return [*said, "gone"]
        said.append(f"{json.loads(packet)} and {case.descriptors} descriptors")
    return [*said, "waits" if case.end == "stay" else "gone"]


def _output(case: Case) -> list[str]:
    said: list[str] = []
    there = sent = b""
    given = 0

    def hear(read: bytes, ended: bool) -> bool:
        nonlocal given
        lines, over = _within(read, ended, *case.limits)
        new, given = lines[given:], len(lines)
        nothing = ended and not new and case.end == "close"
        said.append(f"{brief(None if nothing else new)}{', over' if over else ''}")
        return not nothing

    for write in case.written():
        sent += write
        there = sent[: len(there) + ONE_READ]
        hear(there, False)
    if case.end == "close":
        while len(there) < len(sent):
            there = sent[: len(there) + ONE_READ]
            hear(there, False)
        while hear(sent, True):
            pass
    else:
        while len(there) < len(sent) and not _within(there, False, *case.limits)[1]:
            there = sent[: len(there) + ONE_READ]
        hear(there, True)
        said.append(f"{len(sent) - len(there)} bytes left")
    return said


def _within(sent: bytes, ended: bool, most_bytes: int, most_lines: int) -> tuple[list[str], bool]:
    lines = _lines(sent[:most_bytes], ended)
    return lines[:most_lines], len(sent) > most_bytes or len(lines) > most_lines


def _lines(sent: bytes, ended: bool) -> list[str]:
    """The lines of a whole stream: those that are over, and where it has ended the last one too."""
    *over, rest = sent.replace(b"\r\n", b"\n").split(b"\n")
    lines: list[bytes] = []
    for text in over:
        *returned, last = text.split(b"\r")
        lines += [*filter(None, returned), last]
    *returned, last = rest.split(b"\r")
    lines += filter(None, returned)
    pieces = [piece for line in lines for piece in _pieces(line)]
    begun = _pieces(last) if last else []
    pieces += begun if ended else begun[:-1]
    return [piece.decode("utf-8", "backslashreplace") for piece in pieces]


def _pieces(line: bytes) -> list[bytes]:
    return [line[:LONGEST_LINE], *(_pieces(line[LONGEST_LINE:]) if len(line) > LONGEST_LINE else [])]
