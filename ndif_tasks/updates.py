"""Telling clients: one expiring, replayable stream of updates per session (or per job without a session).

Appending is the job script's; this owns reading, and nothing else.
"""

from __future__ import annotations

from typing import Any, cast

from redis import Redis

from ndif_models.wire import Status, Update

FROM_START = "0"


def read(redis: Redis, stream: str, after: str, block_ms: int | None, count: int = 500) -> list[tuple[str, Update]]:
    """Updates of a stream after an id, waiting up to ``block_ms`` for the first; pairs of (id, update)."""
    answer = cast(Any, redis.xread({f"ndif:updates:{stream}": after}, count=count, block=block_ms))
    rows = answer[0][1] if answer else []
    return [(row.decode(), Update.model_validate_json(fields[b"u"])) for row, fields in rows]


def log_lines(redis: Redis, stream: str, job_id: str) -> list[str]:
    """Every line a job printed that is still kept."""
    lines: list[str] = []
    after = FROM_START
    while rows := read(redis, stream, after, block_ms=None, count=5000):
        after = rows[-1][0]
        lines += [update.description for _, update in rows if update.id == job_id and update.status == Status.LOG]
    return lines
