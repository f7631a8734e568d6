"""A job's life: submit, claim, move, log, renew, cancel, hand back. The only place that changes a job's status.

Live state is one Redis hash per job, changed only by ``jobs.lua``. A Celery message is a ticket ("there is work on
this queue"); which job is next is the script's to say. Must not import the web tier or anything of torch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, cast

from kombu.exceptions import OperationalError
from redis import Redis

from ndif_models.errors import Forbidden
from ndif_models.jobs import Finished
from ndif_models.settings import Settings
from ndif_models.wire import TERMINAL, Status, Update, dumps

from . import routing, updates

log = logging.getLogger(__name__)
FINISHED = "ndif:finished"
MAX_DESCRIPTION = 64 * 1024
#: A wait that is not worth a word.
MIN_WAIT_S = 1.0
#: The tag of a key whose jobs go before those of others.
PRIORITY = "priority"
OVER_ATTEMPTS = "The replicas running this job stopped {n} times; it is not tried again."


@dataclass(frozen=True)
class Submission:
    """A request that passed every check and is to become a job."""

    id: str
    queue: str
    stream: str
    owner: str
    compress: bool
    env: dict[str, Any]
    payload: bytes | None
    payload_url: str
    put_urls: Sequence[str]
    #: Of the owner's key.
    tags: Sequence[str] = ()

    @property
    def tier(self) -> int:
        """Jobs of a lower tier go first."""
        return 0 if PRIORITY in self.tags else 1


@dataclass(frozen=True)
class Claimed:
    """One attempt at a job, held by one replica."""

    id: str
    attempt: int
    compress: bool
    env: dict[str, Any]
    payload: bytes | None
    payload_url: str
    put_urls: Sequence[str]
    tags: Sequence[str]
    has_session: bool
    #: As it was when this one was claimed.
    others_wait: bool


@dataclass(frozen=True)
class Job:
    """What is known of a job, for its owner."""

    id: str
    queue: str
    stream: str
    owner: str
    status: Status
    description: str
    meta: dict[str, Any] | None
    result: str
    log_lines: int
    sequence: int

    @property
    def place(self) -> str:
        """What it is called in line; the script builds the same."""
        return f"{self.sequence:015d}:{self.id}"

    @property
    def finished(self) -> bool:
        """Whether the status is terminal."""
        return self.status in TERMINAL

    def update(self, data: str | None = None) -> Update:
        """The latest status as clients read it."""
        return Update(id=self.id, status=self.status, description=self.description, data=data, meta=self.meta)


@dataclass(frozen=True)
class Listed:
    """A job that waits or runs, for operators; times in seconds since the epoch, by the broker's clock (0: never)."""

    id: str
    queue: str
    status: Status
    owner: str
    attempt: int
    replica: str
    submitted_at: float
    claimed_at: float


@dataclass(frozen=True)
class Position:
    """A waiting job's place in line, from 1, and in how many seconds it may be taken, where recent jobs tell."""

    number: int
    wait_s: float | None

    def __str__(self) -> str:
        """As clients read it; the script says the first half when a job is submitted."""
        about = f" About {_duration(self.wait_s)}." if self.wait_s is not None and self.wait_s >= MIN_WAIT_S else ""
        return f"Position {self.number} in the queue.{about}"


class Jobs:
    """The jobs of one farm, over one connection."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.redis = redis
        self.settings = settings
        self._script = redis.register_script(files("ndif_tasks").joinpath("jobs.lua").read_text())

    def _run(self, *args: str | bytes | int | float) -> Any:
        return self._script(args=list(args))

    def submit(self, new: Submission) -> int:
        """Store a job, put it in line, and send its ticket; returns its position, from 1.

        Raises:
            Forbidden: its session is closed.
        """
        fields: list[str | bytes | int] = ["compress", int(new.compress), "env", dumps(new.env)]
        fields += ["payload_url", new.payload_url, "put_urls", dumps(list(new.put_urls))]
        fields += ["tags", dumps(list(new.tags))]
        if new.payload is not None:
            fields += ["payload", new.payload]
        ttl_s = self.settings.result_ttl_s
        position = self._run("submit", new.id, new.queue, new.stream, ttl_s, new.tier, new.owner, *fields)
        if position is None:
            raise Forbidden("The request names a session that is closed; subscribe again.")
        send_ticket(new.queue)
        return int(position)

    def claim(self, queue: str, replica: str) -> Claimed | None:
        """Take the next job of a queue, or None when nothing waits."""
        answer = self._run("claim", queue, replica, self.settings.lease_s)
        if answer is None:
            return None
        id, flat = answer[0].decode(), answer[1]
        fields = {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
        return Claimed(
            id=id,
            attempt=int(fields["attempt"]),
            compress=fields["compress"] == b"1",
            env=json.loads(fields["env"]),
            payload=fields.get("payload"),
            payload_url=fields["payload_url"].decode(),
            put_urls=json.loads(fields["put_urls"]),
            tags=json.loads(fields.get("tags", b"[]")),
            has_session=fields["stream"].decode() != id,
            others_wait=answer[2] > 0,
        )

    def running(self, job: Claimed) -> bool:
        """Say that a claimed job runs now; False when the job is no longer this attempt's."""
        return self._move(job, Status.RUNNING, "The block is running.", None)

    def complete(self, job: Claimed, result: str | bytes, meta: dict[str, Any]) -> bool:
        """End a job well.

        Args:
            job: the attempt.
            result: the object store's key of the result, or the result itself when it is small.
            meta: what the run cost.
        """
        kind = "body" if isinstance(result, bytes) else "key"
        return self._move(job, Status.COMPLETED, "The values are ready.", meta, kind, result)

    def fail(self, job: Claimed, description: str, meta: dict[str, Any] | None = None) -> bool:
        """End a job with a reason its owner may read."""
        return self._move(job, Status.ERROR, description, meta)

    def _move(self, job: Claimed, to: Status, text: str, meta: dict[str, Any] | None, *fields: str | bytes) -> bool:
        return bool(self._run("move", job.id, job.attempt, to, text[-MAX_DESCRIPTION:], dumps(meta), *fields))

    def log(self, job: Claimed, lines: Sequence[str]) -> bool:
        """Tell lines the block printed."""
        return bool(self._run("log", job.id, job.attempt, *lines)) if lines else True

    def renew(self, job: Claimed) -> str:
        """Keep the lease: ``held``, ``cancel`` (its owner wants it ended) or ``lost`` (another attempt owns it)."""
        return cast(bytes, self._run("renew", job.id, job.attempt, self.settings.lease_s)).decode()

    def cancel(self, id: str) -> bool:
        """End a waiting job, or ask the replica to end a running one; False when it is over already."""
        return bool(self._run("cancel", id, "The job was cancelled."))

    def cancel_all(self, session: str) -> None:
        """End what is not over of the jobs of a session."""
        for id in updates.jobs(self.redis, session):
            self.cancel(id)

    def hand_back(self, id: str, attempt: int) -> None:
        """Put a job whose replica stopped in line again, the first of its tier, or end it after too many attempts."""
        limit = self.settings.max_attempts
        queue = self._run("hand_back", id, attempt, limit, OVER_ATTEMPTS.format(n=limit))
        if queue is not None:
            send_ticket(queue.decode())

    def hand_back_expired(self) -> int:
        """Hand back every job whose lease ran out; returns how many."""
        flat = self._run("expired")
        for i in range(0, len(flat), 2):
            self.hand_back(flat[i].decode(), int(flat[i + 1]))
        return len(flat) // 2

    def fail_waiting(self, queue: str, reason: str) -> int:
        """End every waiting job of a queue with one reason; returns how many."""
        # The last first: behind it there is nobody to move up.
        return sum(int(self._run("move", id, "", Status.ERROR, reason, "null")) for id in self.line(queue)[::-1])

    def reissue_tickets(self) -> int:
        """Send a ticket for every waiting job that has none in its queue; returns how many."""
        sent = 0
        for queue in self.queues():
            waiting = self.redis.zcard(f"ndif:waiting:{queue}")
            missing = waiting - self.redis.llen(queue)
            for _ in range(max(0, missing)):
                send_ticket(queue)
                sent += 1
        return sent

    def queues(self) -> list[str]:
        """Every queue that ever had a job."""
        return sorted(name.decode() for name in cast(set[bytes], self.redis.smembers("ndif:queues")))

    def get(self, id: str) -> Job | None:
        """A job by id, or None when there is none (any more)."""
        names = ("queue", "stream", "owner", "status", "description", "meta", "result", "log_lines", "sequence")
        values = cast(list[bytes | None], self.redis.hmget(f"ndif:job:{id}", names))
        if values[3] is None:
            return None
        text = {name: (value or b"").decode() for name, value in zip(names, values, strict=True)}
        return Job(
            id=id,
            queue=text["queue"],
            stream=text["stream"],
            owner=text["owner"],
            status=Status(text["status"]),
            description=text["description"],
            meta=json.loads(text["meta"] or "null"),
            result=text["result"],
            log_lines=int(text["log_lines"] or 0),
            sequence=int(text["sequence"]),
        )

    def body(self, result: str) -> bytes | None:
        """A result that lies in the broker; None when it has expired, or lies elsewhere."""
        return cast(bytes | None, self.redis.get(result)) if is_inline(result) else None

    def told(self, stream: str, row: str, result: str) -> None:
        """A COMPLETED has reached its client: from now on its result is kept no longer than a URL is good."""
        updates.let_go(self.redis, stream, row)
        if is_inline(result):
            self.redis.expire(result, self.settings.url_ttl_s, lt=True)

    def line(self, queue: str) -> list[str]:
        """The jobs that wait on a queue, the next one first."""
        places = cast(list[bytes], self.redis.zrange(f"ndif:waiting:{queue}", 0, -1))
        return [place.decode().partition(":")[2] for place in places]

    def unfinished(self, queue: str) -> list[Listed]:
        """The jobs of a queue: those that run, and those that wait, the next one first."""
        held = cast(set[bytes], self.redis.smembers(f"ndif:running:{queue}"))
        ids = [*sorted(id.decode() for id in held), *self.line(queue)]
        found = self._fields(ids, ("status", "owner", "attempt", "replica", "submitted_at", "claimed_at"))
        return [
            Listed(id, queue, Status(status), owner, int(attempt), replica, float(submitted), float(claimed or 0))
            for id, (status, owner, attempt, replica, submitted, claimed) in found
        ]

    def finished(self, most: int) -> tuple[int, list[Finished]]:
        """The next jobs that are over and not yet in the database, and how many entries tell of them.

        Fewer than that are told where a job was forgotten before it was written down.
        """
        ids = [id.decode() for id in cast(list[bytes], self.redis.lrange(FINISHED, 0, most - 1))]
        names = ("status", "queue", "owner", "attempt", "replica", "submitted_at", "started_at", "finished_at", "meta")
        return len(ids), [_finished(id, dict(zip(names, row, strict=True))) for id, row in self._fields(ids, names)]

    def _fields(self, ids: Sequence[str], names: Sequence[str]) -> list[tuple[str, list[str]]]:
        """These fields, the first of which every job has, of those jobs that are still known."""
        with self.redis.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hmget(f"ndif:job:{id}", names)
            rows: list[list[bytes | None]] = pipe.execute()
        return [(id, [(value or b"").decode() for value in row]) for id, row in zip(ids, rows, strict=True) if row[0]]

    def written_down(self, count: int) -> None:
        """Forget so many entries of those that :meth:`finished` told."""
        self.redis.ltrim(FINISHED, count, -1)

    def now(self) -> float:
        """The broker's clock, by which jobs are timed."""
        seconds, micros = self.redis.time()
        return seconds + micros / 1e6

    def position(self, job: Job) -> Position | None:
        """A waiting job's place in line."""
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.zrank(f"ndif:waiting:{job.queue}", job.place)
            pipe.get(f"ndif:pace:{job.queue}")
            pipe.scard(f"ndif:running:{job.queue}")
            rank, run_s, busy = pipe.execute()
        if rank is None:
            return None
        return Position(rank + 1, None if run_s is None else float(run_s) * (rank + 1) / max(1, busy))

    def waiting(self, queue: str) -> int:
        """How many jobs wait on a queue."""
        return self.redis.zcard(f"ndif:waiting:{queue}")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _finished(id: str, row: dict[str, str]) -> Finished:
    cost = json.loads(row["meta"] or "null") or {}
    return Finished(
        id=id,
        queue=row["queue"],
        owner=row["owner"],
        status=row["status"],
        ended=cost.get("ended", ""),
        attempts=int(row["attempt"]),
        replica=row["replica"],
        submitted_at=_time(row["submitted_at"]),
        started_at=_time(row["started_at"]) if row["started_at"] else None,
        finished_at=_time(row["finished_at"]),
        run_s=cost.get("runtime", 0.0),
        cpu_s=cost.get("cpu_s", 0.0),
        peak_bytes=cost.get("max_memory_usage", 0),
        policy=cost.get("policy", ""),
    )


def _time(seconds: str) -> datetime:
    return datetime.fromtimestamp(float(seconds), UTC)


def is_inline(result: str) -> bool:
    """Whether a result's location is a Redis key, and not one of the object store."""
    return result.startswith("ndif:result:")


def send_ticket(queue: str) -> None:
    """Tell whoever serves a queue that there is work. The job is in line already: a ticket lost here is sent again."""
    from .app import app

    try:
        app.send_task(routing.RUN_NEXT, args=[queue], queue=queue)
    except OperationalError:
        log.warning("a ticket for %s could not be sent now", queue)
