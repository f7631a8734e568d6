"""What a measure finds: rows of a name, a value and its target; how they are printed and written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One number. ``at_most`` and ``at_least`` are targets; a row with neither is there to be read."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    @property
    def target(self) -> float | None:
        """The target's number, whichever its direction."""
        return self.at_most if self.at_most is not None else self.at_least

    def line(self) -> str:
        """The row of the table."""
        sign = "" if self.target is None else "≤ " if self.at_most is not None else "≥ "
        target = "" if self.target is None else f"{sign}{self.target:g}"
        verdict = {True: "ok", False: "MISSED", None: ""}[self.ok]
        return f"{self.name:<34} {self.value:>10.2f} {self.unit:<8} {target:<8} {verdict}".rstrip()


HEADING = f"{'name':<34} {'value':>10} {'unit':<8} {'target':<8} ok"


def write_json(rows: Iterable[Row], path: Path) -> None:
    """Write ``{name: {value, unit, target, ok}}``."""
    found = {row.name: {"value": row.value, "unit": row.unit, "target": row.target, "ok": row.ok} for row in rows}
    path.write_text(json.dumps(found, indent=1) + "\n")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
