"""Ways in which the host side could be wrong, each a text of its source and another; none is ever written to a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest import mock

from ndif_tasks.replica import output
from ndif_tasks.sandbox import protocol

from .case import Case
from .player import Host

FARM = Host(protocol, output)


@dataclass(frozen=True)
class Mutant:
    """One fault: what a case must show to find it, and where it is."""

    shows: str
    of: ModuleType
    old: str
    new: str

    def concerns(self, case: Case) -> bool:
        """Whether a case meets the module with the fault."""
        return (case.to == "output") == (self.of is output)

    def host(self) -> Host:
        """The host side with this fault.

        Raises:
            ValueError: the text is not in the source, or not once.
        """
        source = Path(str(self.of.__file__)).read_text()
        if source.count(self.old) != 1:
            raise ValueError(f"{self.of.__name__} has {self.old!r} {source.count(self.old)} times.")
        mutated = ModuleType(f"{__name__}.mutated")
        # Pydantic looks a model's annotations up in its module.
        with mock.patch.dict(sys.modules, {mutated.__name__: mutated}):
            exec(compile(source.replace(self.old, self.new), f"<{self.shows}>", "exec"), mutated.__dict__)
        return Host(mutated, output) if self.of is protocol else Host(protocol, mutated)


STOPS_EARLY = """found += (lines := self._cut(data))
            if not lines:
                break"""

MUTANTS = [
    Mutant("a header as long as may be", protocol, "length > MAX", "length >= MAX"),
    Mutant("a header a byte too long", protocol, "BYTES = 512 * 1024", "BYTES = 512 * 1024 + 1"),
    Mutant("a header claimed to be huge", protocol, "if length > MAX_HEADER_BYTES", "if False"),
    Mutant("a length read from its wrong end", protocol, '"!I"', '"<I"'),
    Mutant("a length of more than half its range", protocol, '"!I"', '"!i"'),
    Mutant("an end within the length", protocol, "if head is None:", "if False:"),
    Mutant("an end within the header", protocol, "return None\n        filled +=", "break\n        filled +="),
    Mutant("a header in pieces", protocol, "view[filled:]", "view"),
    Mutant("a header in more pieces", protocol, "filled += got", "filled = got"),
    Mutant("a header of no answer", protocol, "except ValidationError:", "except UnicodeError:"),
    Mutant("values of a type that is nearly right", protocol, "strict=True", "strict=False"),
    Mutant("a field that no answer has", protocol, 'extra="forbid"', 'extra="ignore"'),
    Mutant("an answer of an unknown type", protocol, 'Literal["result", "error"]', "str"),
    Mutant("fewer bytes than none", protocol, "Field(default=0, ge=0)", "0"),
    Mutant("less of a GPU than none", protocol, "ge=0, le", "le"),
    Mutant("more of a GPU than there is", protocol, "ge=0, le=2**60", "ge=0"),
    Mutant("as many bytes as may be", protocol, "answer.bytes > max", "answer.bytes >= max"),
    Mutant("more bytes than may be", protocol, "answer.bytes > max_result_bytes", "False"),
    Mutant("an end among the bytes", protocol, 'raise WireError("The block ended', 'return None and ("'),
    Mutant("bytes in pieces", protocol, "sink(buffer[:got])", "sink(buffer)"),
    Mutant("bytes that come", protocol, "count -= got", "count -= 1"),
    Mutant("bytes behind the last", protocol, "buffer[: min(count, len(buffer))]", "buffer"),
    Mutant("many bytes", protocol, "min(count, CHUNK_BYTES)", "count"),
    Mutant("a reset", protocol, "recv_into(view)\n    except ConnectionError", "recv_into(view)\n    except EOFError"),
    Mutant("a reset between packets", protocol, "4)\n    except ConnectionError", "4)\n    except EOFError"),
    Mutant("an end between packets", protocol, "if data else None", "if True else None"),
    Mutant("a packet as long as may be", protocol, "128 * 1024", "128 * 1024 - 1"),
    Mutant("four descriptors beside a packet", protocol, "MAX_PACKET_BYTES, 4", "MAX_PACKET_BYTES, 3"),
    Mutant("as many printed bytes as may be", output, "_left_bytes < 0", "_left_bytes <= 0"),
    Mutant("as many lines as may be", output, "_left_lines < 0", "_left_lines <= 0"),
    Mutant("more printed bytes than may be", output, "self._left_bytes -= len(data)", "pass"),
    Mutant("more lines than may be", output, "self._left_lines -= len(lines)", "pass"),
    Mutant("bytes over the limit among those within", output, "data[: max(0, self._left_bytes)]", "data"),
    Mutant("bytes far over the limit", output, "max(0, self._left_bytes)", "self._left_bytes"),
    Mutant("lines over the limit among those within", output, "lines[: max(0, self._left_lines)]", "lines"),
    Mutant("lines far over the limit", output, "max(0, self._left_lines)", "self._left_lines"),
    Mutant("a long line that ends", output, "len(piece)), MAX_LINE_BYTES)", "len(piece)), len(piece) or 1)"),
    Mutant("a line as long as may be", output, "len(self._partial) > MAX", "len(self._partial) >= MAX"),
    Mutant("a line a byte too long", output, "BYTES = 16 * 1024", "BYTES = 16 * 1024 + 1"),
    Mutant("a long line that does not end", output, "while len(self._partial) > MAX_LINE_BYTES", "while False"),
    Mutant("a longer line that does not end", output, "while len(self._partial)", "if len(self._partial)"),
    Mutant("an empty line", output, "max(1, len(piece))", "len(piece)"),
    Mutant("a carriage return and a newline", output, r"(\r?\n|\r)", r"(\n|\r)"),
    Mutant("a carriage return by itself", output, r"(\r?\n|\r)", r"(\r?\n)"),
    Mutant("nothing before a carriage return", output, r'if text or end != b"\r"', "if True"),
    Mutant("a newline behind a carriage return already read", output, "if self._returned:", "if False:"),
    Mutant("such a newline behind an empty line", output, ' and ended[-2] != b""', ""),
    Mutant("a newline that is behind no carriage return", output, ' and ended[-1:] == [b"\\r"]', " and ended"),
    Mutant("a newline behind text behind a carriage return", output, "not self._partial and ", ""),
    Mutant("half a character", output, '"backslashreplace"', '"strict"'),
    Mutant("a last line without an end", output, "return self._rest() or None", "return None"),
    Mutant("nothing behind the last line", output, "self._rest() or None", "self._rest()"),
    Mutant("nothing there yet", output, "except BlockingIOError", "except EOFError"),
    Mutant("a last line without an end, drained", output, "return found + self._rest()", "return found"),
    Mutant("no last line to drain", output, "[rest] if rest else []", "[rest]"),
    Mutant("no more drained than shows that it is too much", output, "while not self.over and ", "while "),
    Mutant("a read without a line among those drained", output, "found += self._cut(data)", STOPS_EARLY),
    Mutant("more to drain than one read brings", output, "found += self._cut(data)", "return self._cut(data)"),
]
