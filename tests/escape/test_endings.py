"""Blocks that end their process, lie about their answer, or never give one: each costs its own job and nothing else.

What each does where nobody waits for it is shown in ``test_controls.py``, with the same functions.
"""

from __future__ import annotations

import pytest

from .attacks import ENDINGS, ENDLESS
from .conftest import Record, Send

BROKEN = "The block broke the connection its values return by."
TOLD = {
    "exit_at_once": "The block ended its process (exit status 3) before its values were sent.",
    "crash": "The block crashed its process (SIGSEGV).",
    # The first process of a tree cannot be aborted from within; the C library then runs into what no process survives.
    "abort": "The block crashed its process (SIGSEGV).",
    "run_no_instruction": "The block crashed its process (SIGILL).",
}
GONE = "The block ended its process (exit status 0) before its values were sent."
HALF = "The block ended while its values were being sent."
MORE = "The saved values take 1000000000000000000 bytes"


def frame(header: str) -> str:
    """A frame's header as it should be, whatever it says."""
    return len(header).to_bytes(4).decode("latin-1") + header


#: What a replica reads in place of an answer, and what it makes of it.
LIES = {
    "a length beyond any": ("\xff\xff\xff\xff", BROKEN),
    "half a length": ("\0\0", GONE),
    "half a header": ("\0\0\0\x10short", GONE),
    "no JSON": (frame("hello"), BROKEN),
    "no text": (frame("\xff\xfe"), BROKEN),
    "nothing": (frame("{}"), BROKEN),
    "depth without end": (frame("[" * 2**15), BROKEN),
    "another kind": (frame('{"type":"ready"}'), BROKEN),
    "a field of its own": (frame('{"type":"result","extra":1}'), BROKEN),
    "a number as text": (frame('{"type":"result","bytes":"1"}'), BROKEN),
    "less than nothing": (frame('{"type":"result","bytes":-1}'), BROKEN),
    "more than there may be": (frame('{"type":"result","bytes":1000000000000000000}'), MORE),
    "a result that does not come": (frame('{"type":"result","bytes":1000}'), HALF),
    "a large result that does not come": (frame('{"type":"result","bytes":1000000000}'), HALF),
    "a reason that is no Unicode": (frame('{"type":"error","description":"\\ud800"}'), BROKEN),
}


@pytest.mark.parametrize("name", TOLD)
def test_an_ending_is_told_in_one_sentence(name: str, send: Send) -> None:
    assert send(name, {}) == TOLD[name]


@pytest.mark.parametrize("kind", LIES)
def test_a_lie_is_told_in_one_sentence(kind: str, send: Send) -> None:
    written, sentence = LIES[kind]
    told = send("lie", {"frame": written})
    assert told.startswith(sentence) and "\n" not in told


@pytest.mark.parametrize("name", ["kill_itself", "stop_itself"])
def test_the_first_process_of_a_tree_hears_no_such_signal_from_within(name: str, send: Send) -> None:
    assert send(name, {}) == ""


def test_every_ending_is_tried() -> None:
    assert {*TOLD, "lie", "kill_itself"} == set(ENDINGS)


@pytest.mark.parametrize("name", sorted(set(ENDLESS) - {"hang_up_and_linger", "stop_itself"}))
def test_an_endless_block_ends_when_its_caller_wants(name: str, recorded: Record) -> None:
    sender = recorded(name, {"rounds": 10**10, "seconds": 60, "enough": ""})
    id = sender.submit()
    sender.wait_printed(id, "running")
    assert sender.cancel(id)
    assert sender.wait_for(id, "ERROR")["description"].startswith("The job was cancelled.")


def test_a_block_that_hangs_up_is_ended(send: Send) -> None:
    told = send("hang_up_and_linger", {"seconds": 60, "enough": ""})
    assert told == "The block broke off the connection its values return by."
