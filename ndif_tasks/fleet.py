"""What really runs: records that nodes and replicas renew in Redis, and that expire when they stop."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, cast

from redis import Redis

log = logging.getLogger(__name__)

BEAT_S = 2.0
TTL_S = 10.0
MAX_REASON = 1000
#: How long a model that could not be loaded is left alone: the first time, and at most.
FIRST_REST_S, LONGEST_REST_S = 30.0, 3600.0

#: Exit statuses of a replica: it served and then lost its zygote, so nothing is wrong with its model; or it could not
#: load its model and has said why.
SERVED_STATUS = 75
FAILED_STATUS = 76


#: Set by a node's agent for the replicas it starts.
REPLICA_VARIABLE = "NDIF_REPLICA_ID"
DTYPE_VARIABLE = "NDIF_REPLICA_DTYPE"

STOPPING_TTL_S = 120
EVICTED_TTL_S = 600


class State(StrEnum):
    """A replica's state; a deployment's is that of its best replica."""

    PENDING = "PENDING"
    DOWNLOADING = "DOWNLOADING"
    LOADING = "LOADING"
    HOT = "HOT"
    FAILED = "FAILED"


Record = dict[str, Any]


def beat(redis: Redis, kind: str, id: str, record: Record, ttl_s: float = TTL_S) -> None:
    """Write a ``node``'s or ``replica``'s record, good for ``ttl_s``."""
    with redis.pipeline() as pipe:
        pipe.set(_key(kind, id), json.dumps(record), px=int(ttl_s * 1000))
        pipe.zadd(f"ndif:{kind}s", {id: time.time()}, nx=True)
        pipe.execute()


def forget(redis: Redis, kind: str, id: str) -> None:
    """Remove a record at once."""
    with redis.pipeline() as pipe:
        pipe.delete(_key(kind, id))
        pipe.zrem(f"ndif:{kind}s", id)
        pipe.execute()


def alive(redis: Redis, kind: str) -> dict[str, Record]:
    """Every record of a kind that has not expired, oldest first."""
    ids = [id.decode() for id in cast(list[bytes], redis.zrange(f"ndif:{kind}s", 0, -1))]
    if not ids:
        return {}
    answer = cast(list[bytes | None], redis.mget([_key(k, id) for k in (kind, "stopping") for id in ids]))
    records, marks = answer[: len(ids)], answer[len(ids) :]
    gone = [id for id, record in zip(ids, records, strict=True) if record is None]
    if gone:
        redis.zrem(f"ndif:{kind}s", *gone)
    return {
        id: {**json.loads(record), "stopping": mark is not None}
        for id, record, mark in zip(ids, records, marks, strict=True)
        if record is not None
    }


def mark_stopping(redis: Redis, id: str) -> None:
    """A replica was told to stop: it may finish its job, and counts no more."""
    redis.set(_key("stopping", id), 1, ex=STOPPING_TTL_S)


class Heart:
    """Calls ``tell`` every :data:`BEAT_S` in a thread of its own, until stopped."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tell no more; returns once nothing is being told, so that what is forgotten now stays forgotten."""
        self._stopped.set()
        self._thread.join(TTL_S)

    def _beat(self) -> None:
        while not self._stopped.is_set():
            try:
                self._tell()
            except Exception as error:  # a broker away for longer than its retries
                log.warning("heartbeat: %s", type(error).__name__)
            self._stopped.wait(BEAT_S)


@dataclass(frozen=True)
class Failure:
    """Why a model could not be loaded, in one sentence; how often in a row, and when last, in seconds of the epoch."""

    reason: str
    times: int
    at: float

    def rests(self, now: float) -> bool:
        """Whether it is too soon to try again: each failure doubles the pause."""
        return now < self.at + min(FIRST_REST_S * 2.0 ** (self.times - 1), LONGEST_REST_S)


def note_failure(redis: Redis, queue: str, reason: str) -> None:
    """Remember why a model cannot be loaded, until it is loaded, deployed again or evicted."""
    sentence = " ".join(reason.split())[:MAX_REASON].rstrip(".") + "."
    before = failure(redis, queue)
    now = Failure(sentence, before.times + 1 if before else 1, time.time())
    redis.hset("ndif:failures", queue, json.dumps(asdict(now)))


def failure(redis: Redis, queue: str) -> Failure | None:
    """Why a model could not be loaded, if that is so."""
    told = cast(bytes | None, redis.hget("ndif:failures", queue))
    return None if told is None else Failure(**json.loads(told))


def clear_failure(redis: Redis, queue: str) -> None:
    """Let a model be tried again."""
    redis.hdel("ndif:failures", queue)


def unserved_s(redis: Redis, queue: str, served: bool) -> float:
    """For how long a queue with waiting jobs has had nobody to serve it, as far as was looked."""
    if served:
        redis.hdel("ndif:unserved", queue)
        return 0.0
    redis.hsetnx("ndif:unserved", queue, str(time.time()))
    return time.time() - float(cast(bytes, redis.hget("ndif:unserved", queue)))


def mark_evicted(redis: Redis, queue: str) -> None:
    """A deployment was taken away: what still waits for it, or is handed back to it, waits for nobody."""
    redis.set(f"ndif:evicted:{queue}", 1, ex=EVICTED_TTL_S)


def was_evicted(redis: Redis, queue: str) -> bool:
    """Whether a queue's deployment was taken away lately."""
    return bool(redis.exists(f"ndif:evicted:{queue}"))


def _key(kind: str, id: str) -> str:
    return f"ndif:{kind}:{id}"
