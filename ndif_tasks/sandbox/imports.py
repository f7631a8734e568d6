"""A block's own imports, held to a list of modules where a policy has one: a courtesy with a sentence, no wall."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Any

from . import failure

_IMPORTERS = ("<frozen importlib", importlib.__file__, __file__)


class Allowed(MetaPathFinder):
    """Refuses what is not on the list when one of the block's own lines asks for it, and otherwise finds nothing."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = tuple(modules)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """As Python asks.

        Raises:
            ImportError: the module is not one that this farm lets blocks import.
        """
        beneath = any(fullname == one or fullname.startswith(f"{one}.") for one in self._modules)
        if not beneath and _asked_by_block():
            known = ", ".join(self._modules) or "none"
            raise ImportError(f"This farm's policy does not let a block import {fullname!r}; it lets in: {known}.")


def _asked_by_block() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_IMPORTERS):
        frame = frame.f_back
    return not failure.is_farm(frame.f_code.co_filename)
