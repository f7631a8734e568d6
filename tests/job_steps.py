"""Steps of a job's life, as tests take them straight on the job store. The job is called ``j``, its session ``s``."""

from __future__ import annotations

from typing import Any

from ndif_tasks import updates
from ndif_tasks.jobs import Claimed, Job, Jobs, Submission

QUEUE = "org/model"


def submit(jobs: Jobs, id: str = "j", stream: str = "s", queue: str = QUEUE, **more: Any) -> int:
    fields: dict[str, Any] = {"owner": "me", "compress": True, "env": {}, "payload": b"\x80", "payload_url": ""}
    return jobs.submit(Submission(id=id, queue=queue, stream=stream, put_urls=["u1", "u2", "u3"], **(fields | more)))


def claim(jobs: Jobs, replica: str = "r") -> Claimed:
    taken = jobs.claim(QUEUE, replica)
    assert taken is not None
    return taken


def running(jobs: Jobs, id: str = "j") -> Claimed:
    submit(jobs, id)
    taken = claim(jobs)
    assert jobs.running(taken)
    return taken


def get(jobs: Jobs, id: str = "j") -> Job:
    job = jobs.get(id)
    assert job is not None
    return job


def entries(jobs: Jobs, stream: str = "s") -> list[updates.Entry]:
    return updates.read(jobs.redis, stream, updates.FROM_START, None)


def told(jobs: Jobs, stream: str = "s") -> list[str]:
    return [entry.update.status for entry in entries(jobs, stream)]
