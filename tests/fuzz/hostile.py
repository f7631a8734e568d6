"""What hostile runners do: lies about lengths, wrong JSON, floods, early ends, any chunking; each drawn from a seed."""

from __future__ import annotations

from random import Random

from .case import Case, Part
from .draw import Draw

CAP = 512 * 1024
LINE = 16 * 1024
PACKET = 128 * 1024
SENT = 1_500_000

TYPES = ('"result"', '"error"', '"other"', '""', '"err\\u006fr"', '["error"]', "null", "0")
TEXTS = (
    *('""', '"no"', '"\xc3\xa9"', '"\\u0000"', '"\x7f"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\ude00\\ud83d"'),
    *('"\xff"', '"\xed\xa0\x80"', '"\n"', '"\\x"', "null", "5", '["no"]', '"' + "\xf0\x9f\x98\x80" * 20_000 + '"'),
)
NUMBERS = (
    *("0", "5", "6", "-1", "-0", *map(str, (SENT, 2**31, 2**60, 2**60 + 1, 2**64)), "9" * 4300, "9" * 4301),
    *("5.0", "5e0", "1e400", "NaN", "-Infinity", "true", "null", '"5"', "05", "+5"),
    *("[]", "[" * 100_000, '{"a":' * 300 + "0" + "}" * 300),
)
KEYS = ('"type"', '"bytes"', '"gpu_bytes"', '"description"', '"more"', '"\\u0074ype"', '"\\ud800"', "type")
FRAMES = ("{%s}", " {%s}\n", "\xef\xbb\xbf{%s}", "{%s", "[%s]", "[{%s}]", "{%s}{}", "{%s,}")

PRINTED = ("a", "\n", "\r", "\r\n", "b\n", "c\r", "\xc3", "\xa9", "\xff", "\0", "")
PARTS: tuple[Part, ...] = (
    *((text, 1) for _ in range(4) for text in PRINTED),
    *(("a", times) for times in (LINE - 1, LINE, LINE + 1, 2 * LINE, 4 * LINE)),
    *(("\xc3\xa9", LINE), ("\n", 4 * LINE), ("\r", 4 * LINE)),
)


def make(seed: int) -> Case:
    """The case of a seed."""
    return case(Draw(chance=Random(seed)))


def case(draw: Draw) -> Case:
    """Any case."""
    return draw.pick((_answer, _answer, _output, _output, _packets))(draw)


def _answer(draw: Draw) -> Case:
    most = draw.pick((5, 0, 2**24))
    end = draw.pick(("close", "reset", "stay"))
    header, count = draw.pick((_result, _object, _object, _junk))(draw, most)
    padding = max(0, draw.pick((0, 0, 0, 0, CAP, CAP + 1, CAP - 1)) - len(header))
    size = len(header) + padding
    length = draw.pick((size, size, size, size, 0, size + 1, max(0, size - 1), CAP, 2**31, 2**32 - 1))
    # As many bytes as the header says, or nearly.
    body = max(0, min(count, SENT) + draw.pick((0, 0, -1, 1, -count, 100_000)))
    start = length.to_bytes(4, "big").decode("latin-1") + header
    parts = [*_cut(draw, start), (" ", padding), ("body", body // 4), *_cut(draw, "tail"[: body % 4])]
    parts = draw.pick((*[parts] * 8, [(start[:3], 1)], [(start[:-1], 1)], []))
    return Case("answer", _writes(draw, parts), end, (most,))


def _result(draw: Draw, most: int) -> tuple[str, int]:
    count = max(0, draw.pick((most, most + 1, most - 1, SENT, 2**40)))
    return f'{{"type":"result","bytes":{count}}}', count


def _object(draw: Draw, most: int) -> tuple[str, int]:
    """Mostly nearly an answer: fields missing, twice, of wrong types, or not known."""
    values = {'"type"': TYPES, '"bytes"': NUMBERS, '"gpu_bytes"': NUMBERS, '"description"': TEXTS}
    fields = [draw.pick(('"type":"result"', '"type":"error"', '"bytes":5'))]
    for _ in range(draw.pick((0, 1, 1, 2, 3))):
        key = draw.pick(KEYS)
        fields.append(f"{key}:{draw.pick(values.get(key, (*TYPES, *TEXTS, *NUMBERS)))}")
    return draw.pick((*FRAMES[:1] * 8, *FRAMES)) % draw.pick((",", " , ")).join(fields), 5


def _junk(draw: Draw, most: int) -> tuple[str, int]:
    return "".join(chr(draw.pick(range(256))) for _ in range(draw.pick(range(12)))), 0


def _packets(draw: Draw) -> Case:
    """Orders and events: their sender is not hostile, but may end at any time."""
    end = draw.pick(("close", "reset", "stay"))
    plain: tuple[tuple[Part, ...], ...] = ((("{}", 1),), (('{"a":"\\u00e9"}', 1),), (("", 1),))
    longest: tuple[Part, ...] = (("{}", 1), (" ", PACKET - 2))
    writes = [draw.pick((*plain, longest)) for _ in range(draw.pick(range(4)))]
    return Case("packet", tuple(writes), end, (), draw.pick(range(5)))


def _output(draw: Draw) -> Case:
    """All line ends, long lines, floods, halves of characters, and any limits."""
    end = draw.pick(("close", "drain", "close, drain"))
    most_bytes = draw.pick((2**20, 2**20, 0, 1, 2, LINE, 4 * LINE))
    most_lines = draw.pick((2**20, 2**20, 0, 1, 2, 3))
    parts = [draw.pick(PARTS) for _ in range(draw.pick(range(7)))]
    return Case("output", _writes(draw, parts), end, (most_bytes, most_lines))


def _cut(draw: Draw, text: str) -> list[Part]:
    """The same text in one piece or more."""
    at = sorted(draw.pick(range(len(text) + 1)) for _ in range(draw.pick((0, 0, 1, 2))))
    return [(text[begin:end], 1) for begin, end in zip([0, *at], [*at, len(text)], strict=True)]


def _writes(draw: Draw, parts: list[Part]) -> tuple[tuple[Part, ...], ...]:
    """Parts as writes: each together with those before it, or alone."""
    writes: list[list[Part]] = []
    for part in parts:
        if not part[0] or part[1] == 0:
            continue
        if not writes or draw.pick((False, True)):
            writes.append([part])
        elif part[1] == writes[-1][-1][1] == 1:
            writes[-1][-1] = (writes[-1][-1][0] + part[0], 1)
        else:
            writes[-1].append(part)
    return tuple(map(tuple, writes))
