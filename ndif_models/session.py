"""The session folder: what a running farm on this machine writes down about itself (pids, ports, secrets, logs).

``session.json`` (mode 0600) holds ``{"pid", "start_time", "variables": {NAME: value}, "services": {...}}``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "session.json"


def read(session_dir: Path) -> dict[str, Any] | None:
    """The session's record if its supervisor is alive, else None."""
    try:
        record: dict[str, Any] = json.loads((session_dir / FILE).read_text())
        alive = process_start_time(int(record["pid"])) == record["start_time"]
        whole = isinstance(record["variables"], dict) and isinstance(record["services"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if alive and whole else None


def write(session_dir: Path, record: Mapping[str, Any]) -> None:
    """Replace the session's record in one step."""
    scratch = session_dir / f"{FILE}.{os.getpid()}"
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(record, file, indent=1)
    os.replace(scratch, session_dir / FILE)


def running_variables(session_dir: Path) -> dict[str, str | None]:
    """The settings that the running session fixed (addresses, ports, keys); empty when none runs."""
    record = read(session_dir)
    return dict(record["variables"]) if record else {}


def process_start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when it is gone. With the pid this names it for good."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
