"""Telling clients: one expiring, replayable stream of updates per session (or per job without a session).

Appending is the job script's; this owns reading them and letting them go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from redis import Redis

from ndif_models.wire import Status, Update

FROM_START = "0"


class Entry(NamedTuple):
    """One row of a stream; ``body`` is a result small enough to come with its COMPLETED."""

    row: str
    update: Update
    body: bytes | None


def read(redis: Redis, stream: str, after: str, block_ms: int | None, count: int = 200) -> list[Entry]:
    """Updates of a stream after a row, waiting up to ``block_ms`` for the first."""
    answer = cast(Any, redis.xread({_key(stream): after}, count=count, block=block_ms))
    rows = answer[0][1] if answer else []
    return [Entry(row.decode(), Update.model_validate_json(fields[b"u"]), fields.get(b"body")) for row, fields in rows]


def let_go(redis: Redis, stream: str, row: str) -> None:
    """Drop a row that was told, and with it the body it holds."""
    redis.xdel(_key(stream), row)


def close(redis: Redis, session: str, ttl_s: int) -> None:
    """Nobody listens to a session any more: the job script takes no more jobs for it."""
    redis.set(f"ndif:closed:{session}", 1, ex=ttl_s)


def log_lines(redis: Redis, stream: str, job_id: str) -> list[str]:
    """Every line a job printed that is still kept."""
    told = (one for one in _all(redis, stream) if one.id == job_id and one.status == Status.LOG)
    return [one.description for one in told]


def jobs(redis: Redis, session: str) -> set[str]:
    """Every job of a session of which anything is still told."""
    return {one.id for one in _all(redis, session)}


def _all(redis: Redis, stream: str) -> Iterator[Update]:
    after = FROM_START
    while found := read(redis, stream, after, block_ms=None):
        after = found[-1].row
        yield from (entry.update for entry in found)


def _key(stream: str) -> str:
    return f"ndif:updates:{stream}"
