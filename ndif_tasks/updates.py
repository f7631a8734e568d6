"""Telling clients: one expiring, replayable stream of updates per session (or per job without a session).

Appending is the job script's; this owns reading them and letting them go.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from redis import Redis

from ndif_models.wire import Status, Update

FROM_START = "0"


class Entry(NamedTuple):
    """One row of a stream; ``body`` is a result small enough to be told with its COMPLETED, or empty."""

    row: str
    update: Update
    body: bytes


def read(redis: Redis, stream: str, after: str, block_ms: int | None, count: int = 500) -> list[Entry]:
    """Updates of a stream after a row, waiting up to ``block_ms`` for the first."""
    answer = cast(Any, redis.xread({stream_key(stream): after}, count=count, block=block_ms))
    rows = answer[0][1] if answer else []
    return [
        Entry(row.decode(), Update.model_validate_json(fields[b"u"]), fields.get(b"body", b"")) for row, fields in rows
    ]


def told(redis: Redis, stream: str, entry: Entry, kept_s: int) -> None:
    """A COMPLETED was told: it is not told again, and a result in the broker is kept no longer than ``kept_s``."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.xdel(stream_key(stream), entry.row)
        pipe.expire(entry.update.data or "", kept_s)
        pipe.execute()


def log_lines(redis: Redis, stream: str, job_id: str) -> list[str]:
    """Every line a job printed that is still kept."""
    lines: list[str] = []
    after = FROM_START
    while found := read(redis, stream, after, block_ms=None, count=5000):
        after = found[-1].row
        updates = (entry.update for entry in found)
        lines += [update.description for update in updates if update.id == job_id and update.status == Status.LOG]
    return lines


def stream_key(stream: str) -> str:
    """The Redis key of a stream."""
    return f"ndif:updates:{stream}"
