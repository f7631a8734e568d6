"""What a caller is told when a block fails: the traceback of the caller's own frames, or one sentence."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from . import hints, places, protocol

MAX_CHARS = 60_000

_PATHS = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_PATHS |= {entry for entry in sys.path if places.is_site(entry)}
_OURS = (*(os.path.join(path, "") for path in sorted(_PATHS)), str(Path(__file__).resolve().parents[2] / "ndif_"))


class Unreadable(Exception):
    """The request could not be turned into a block to run."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(_reason_unreadable(error))


class Unsendable(Exception):
    """The saved values could not be packed; ``name`` is the first that could not, where it is known."""

    def __init__(self, name: str | None, error: BaseException) -> None:
        what = f"The saved value `{name}`" if name else "A saved value"
        super().__init__(f"{what} cannot be sent back: {_brief(error)}")


def describe(error: BaseException, module: Any, request: protocol.Request) -> str:
    """The text of an ERROR update.

    Args:
        error: what ended the block.
        module: the model's root module, to name the part in which the model itself failed.
        request: what the block might take, to name what it went over.
    """
    # A lone surrogate is fine in a Python string and cannot be sent.
    return _text(error, module, request)[-MAX_CHARS:].encode("utf-8", "backslashreplace").decode()


def _text(error: BaseException, module: Any, request: protocol.Request) -> str:
    if isinstance(error, Unreadable | Unsendable):
        return str(error)
    if isinstance(error, SystemExit):
        return "The block called exit(). To end a trace early, call tracer.stop()."
    try:
        summary = traceback.TracebackException.from_exception(error, compact=True)
        _strip(summary)
        return "".join(summary.format()) + _in_model(error, module) + hints.after(error, request)
    except BaseException:  # an exception may lie about itself, even in its __str__
        return f"The block raised {type(error).__name__}."


def _in_model(error: BaseException, module: Any) -> str:
    """Where in the model an error arose that no line of the caller's raised, as after an edit of a wrong shape."""
    paths = {id(part): path for path, part in module.named_modules()}
    place = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        part = frame.f_locals.get("self")
        if id(part) in paths:
            place = paths[id(part)]
        elif not is_farm(frame.f_code.co_filename):
            place = None
    return "" if place is None else f"(raised by the model's own forward pass, in {place or 'its root'})\n"


def _strip(summary: traceback.TracebackException) -> None:
    """Keep the caller's frames, through causes and contexts."""
    seen: set[int] = set()
    line = [summary]
    while line:
        one = line.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.stack = traceback.StackSummary.from_list([f for f in one.stack if not is_farm(f.filename)])
        line += [other for other in (one.__cause__, one.__context__) if other is not None]
        line += one.exceptions or []


def is_farm(filename: str) -> bool:
    return filename.startswith(_OURS) or filename.startswith("<frozen ")


def _reason_unreadable(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        return (
            f"The request needs the module {error.name!r}, which the farm does not have. If it is your own, ship it: "
            f"nnsight.register({(error.name or '').partition('.')[0]!r}) before the trace."
        )
    if name == "UnknownPersistentIdError":
        return (
            f"The request names a part that the farm's model does not have ({error}); the client's model was built "
            "differently. Compare versions with nnsight.compare()."
        )
    return f"The request could not be read: {_brief(error)}"


def _brief(error: BaseException) -> str:
    try:
        return f"{type(error).__name__[:200]}: {error}"[:2000]
    except BaseException:
        return type(error).__name__[:200]
