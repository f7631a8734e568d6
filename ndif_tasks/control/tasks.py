"""The control worker's tasks: reconcile the fleet, keep promises to jobs, sweep old objects. Each may run twice."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Iterator

from redis import Redis
from redis.exceptions import LockError

from ndif_models.fleet import deployments
from ndif_models.jobs import record
from ndif_models.keys import new_id
from ndif_models.settings import settings
from ndif_tasks import fleet, routing
from ndif_tasks.app import app
from ndif_tasks.broker import connect
from ndif_tasks.jobs import Jobs
from ndif_tasks.store import Store

from .plan import Start, Stop, Wanted, plan

log = logging.getLogger(__name__)

#: Long enough for an agent to take the order and heartbeat itself.
ORDERED_TTL_S = 30.0
#: A worker started by hand may be restarted by hand; its queue waits this long for it.
UNSERVED_LIMIT_S = 60.0
LOCK_S = 20.0
#: How many finished jobs are written down at once.
BATCH = 500


@functools.cache
def _redis() -> Redis:
    return connect(settings())


@app.task(name=routing.RECONCILE, ignore_result=True)  # type: ignore[untyped-decorator]
def reconcile() -> None:
    """Order what is missing, stop what is too much, and tell waiting jobs of models that cannot be loaded."""
    with _alone("reconcile") as alone:
        if alone:
            _reconcile(_redis())


@contextlib.contextmanager
def _alone(what: str) -> Iterator[bool]:
    """Whether nobody else in the farm does the same now; if so nobody will, for as long as this lasts."""
    lock = _redis().lock(f"ndif:lock:{what}", timeout=LOCK_S, blocking_timeout=0)
    held = lock.acquire()
    try:
        yield held
    finally:
        if held:
            with contextlib.suppress(LockError):  # it took longer than the lock holds; another may be at it
                lock.release()


def _reconcile(redis: Redis) -> None:
    wanted = [Wanted(d.queue, d.model_key, d.replicas, d.dtype) for d in deployments(settings().db_url)]
    failed = {one.queue: found for one in wanted if (found := fleet.failure(redis, one.queue)) is not None}
    resting = {queue for queue, found in failed.items() if found.rests(time.time())}
    nodes = list(fleet.alive(redis, "node"))
    replicas = fleet.alive(redis, "replica")
    for step in plan(wanted, replicas, nodes, resting):
        if isinstance(step, Start):
            _order(redis, step)
        else:
            _stop(redis, step)
    _tell_hopeless(Jobs(redis, settings()), {one.queue for one in wanted}, replicas, failed)


def _tell_hopeless(
    jobs: Jobs, wanted: set[str], replicas: dict[str, fleet.Record], failed: dict[str, fleet.Failure]
) -> None:
    """End the waiting jobs of models that nothing will serve: they could not be loaded, or are gone."""
    hot = {record["queue"] for record in replicas.values() if record["state"] == fleet.State.HOT}
    for queue, found in failed.items():
        if queue not in hot:
            jobs.fail_waiting(queue, found.reason)
    served = wanted | {record["queue"] for record in replicas.values()}
    for queue in jobs.queues():
        limit_s = 0.0 if fleet.was_evicted(jobs.redis, queue) else UNSERVED_LIMIT_S
        if fleet.unserved_s(jobs.redis, queue, queue in served or not jobs.waiting(queue)) > limit_s:
            jobs.fail_waiting(queue, f"{queue} is no longer served by this farm.")


def _order(redis: Redis, step: Start) -> None:
    replica = new_id("r-")[:14]
    wanted = step.wanted
    record = {"queue": wanted.queue, "model_key": wanted.model_key, "node": step.node, "managed": True}
    record |= {"state": fleet.State.PENDING, "description": f"Ordered on {step.node}."}
    fleet.beat(redis, "replica", replica, record, ORDERED_TTL_S)
    args = [replica, wanted.model_key, wanted.dtype]
    app.send_task(routing.START_REPLICA, args=args, queue=routing.node(step.node), expires=ORDERED_TTL_S)
    log.info("replica %s of %s: ordered on %s", replica, wanted.queue, step.node)


def _stop(redis: Redis, step: Stop) -> None:
    fleet.mark_stopping(redis, step.replica)
    app.send_task(routing.STOP_REPLICA, args=[step.replica], queue=routing.node(step.node), expires=60)
    log.info("replica %s: stopping", step.replica)


@app.task(name=routing.KEEP_PROMISES, ignore_result=True)  # type: ignore[untyped-decorator]
def keep_promises() -> None:
    """Put jobs of stopped replicas in line again, and replace tickets that went missing."""
    jobs = Jobs(_redis(), settings())
    lost, tickets = jobs.hand_back_expired(), jobs.reissue_tickets()
    if lost or tickets:
        log.info("%d jobs handed back, %d tickets sent again", lost, tickets)


@app.task(name=routing.WRITE_DOWN, ignore_result=True)  # type: ignore[untyped-decorator]
def write_down() -> None:
    """Bring the jobs that are over into the database."""
    jobs = Jobs(_redis(), settings())
    with _alone("write_down") as alone:
        while alone:
            entries, finished = jobs.finished(BATCH)
            record(settings().db_url, finished)
            jobs.written_down(entries)
            alone = entries == BATCH


@app.task(name=routing.SWEEP_OBJECTS, ignore_result=True)  # type: ignore[untyped-decorator]
def sweep_objects() -> None:
    """Delete payloads and results whose jobs are forgotten."""
    deleted = Store(settings()).delete_older(2 * settings().result_ttl_s)
    log.info("%d old objects deleted", deleted)
