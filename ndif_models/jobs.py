"""Jobs that are over: who sent them, when, what they cost, how they ended. A live job is the broker's to know.

SQLAlchemy is imported when a function is called: replicas load the package and never touch the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime


@dataclass(frozen=True)
class Finished:
    """The record of a job. Times are UTC.

    Attributes:
        ended: why, in a word, as its ``meta`` tells; empty for a job that no replica ran to an end.
        replica: the last that had it; empty if none had.
        run_s: the time it ran, cpu_s: processor time of all threads, peak_bytes: memory, shared weights included.
    """

    id: str
    queue: str
    owner: str
    status: str
    ended: str
    attempts: int
    replica: str
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime
    run_s: float
    cpu_s: float
    peak_bytes: int
    policy: str


def record(url: str, jobs: Sequence[Finished]) -> None:
    """Write records down, each once."""
    from sqlalchemy import select

    from .db import session_scope
    from .tables import JobRow

    with session_scope(url) as session:
        there = set(session.scalars(select(JobRow.id).where(JobRow.id.in_([job.id for job in jobs]))))
        session.add_all(JobRow(**asdict(job)) for job in {job.id: job for job in jobs}.values() if job.id not in there)


def recent(url: str, *, queue: str | None = None, owner: str | None = None, limit: int = 100) -> list[Finished]:
    """The latest records, the newest first, of all or of one queue or owner."""
    from sqlalchemy import select

    from .db import session_scope
    from .tables import JobRow

    chosen = select(JobRow).order_by(JobRow.finished_at.desc(), JobRow.id).limit(limit)
    if queue is not None:
        chosen = chosen.where(JobRow.queue == queue)
    if owner is not None:
        chosen = chosen.where(JobRow.owner == owner)
    with session_scope(url, read_only=True) as session:
        rows = list(session.scalars(chosen))
        return [Finished(**{one.name: getattr(row, one.name) for one in fields(Finished)}) for row in rows]
