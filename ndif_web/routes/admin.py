"""What operators ask of the farm: deploy, look, evict; and see and end jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

from flask import Blueprint, Response, jsonify, request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ndif_models import snapshots
from ndif_models.errors import BadRequest, Conflict, NdifError, NotFound
from ndif_models.fleet import Deployment, put_deployment, remove_deployment
from ndif_models.jobs import Finished, recent
from ndif_models.keys import DEFAULT_REVISION, DEFAULT_TASK, ModelKey
from ndif_models.wire import Status
from ndif_tasks import fleet, routing, updates
from ndif_tasks.app import app as celery
from ndif_tasks.fleet import State
from ndif_tasks.jobs import Listed
from ndif_web.auth import identify
from ndif_web.deployed import View, view
from ndif_web.farm import farm
from ndif_web.routes.jobs import known_job

blueprint = Blueprint("admin", __name__, url_prefix="/admin")

MOST_FINISHED = 10_000
DTYPES = ("float32", "bfloat16", "float16", "float64")


Body = TypeVar("Body", bound=BaseModel)


class Order(BaseModel):
    """What a deployment should be."""

    model_config = ConfigDict(extra="forbid")

    checkpoint: str = Field(max_length=200)
    revision: str = DEFAULT_REVISION
    task: str = DEFAULT_TASK
    dtype: str | None = None
    replicas: int | None = Field(default=None, ge=1, le=64)


class Restart(BaseModel):
    """Which replicas to replace."""

    model_config = ConfigDict(extra="forbid")

    queue: str
    replica: str | None = None


@blueprint.before_request
def only_operators() -> None:
    """Every admin route needs the operator's key."""
    identify(request, farm().settings)
    if request.method == "POST" and request.mimetype != "application/json":
        raise BadRequest("Send JSON (Content-Type: application/json).")


@blueprint.post("/deployments")
def deploy() -> tuple[Response, int]:
    """Write down what should run, and have it brought about; what the order leaves out stays as it is."""
    order = _order()
    key = ModelKey(_repo_id(order.checkpoint), order.revision, order.task)
    one = view(farm()).wanted.get(key.queue)
    if one is not None and order.dtype not in (None, one.dtype) and fleet.failure(farm().redis, key.queue) is None:
        held_in = one.dtype or "its own dtype"
        raise Conflict(f"{key.queue} is deployed in {held_in}; `ndif evict {key.queue}` first, then deploy it anew.")
    fleet.clear_failure(farm().redis, key.queue)
    wanted = put_deployment(
        farm().settings.db_url,
        queue=key.queue,
        model_key=str(key),
        replicas=order.replicas or (one.replicas if one else 1),
        dtype=order.dtype or (one.dtype if one else None),
    )
    celery.send_task(routing.RECONCILE, queue=routing.CONTROL)
    return jsonify(queue=wanted.queue, model_key=wanted.model_key, replicas=wanted.replicas), 202


@blueprint.post("/deployments/restart")
def restart() -> Response:
    """Stop the replicas of a deployment, or one; what is then missing is started at once."""
    order = _valid(Restart)
    now = view(farm())
    ids = [id for id, one in now.of(order.queue).items() if order.replica in (None, id) and one["managed"]]
    if not ids:
        raise NotFound(f"{order.replica or order.queue} is not run by this farm. Deployed: {_names(now)}.")
    for id in ids:
        _stop(id, now.replicas[id])
    celery.send_task(routing.RECONCILE, queue=routing.CONTROL)
    return jsonify(stopped=ids)


@blueprint.get("/deployments")
def deployments() -> Response:
    """Every deployment, or the one of ``?queue=``, with its state."""
    now = view(farm())
    queue = request.args.get("queue")
    chosen = [one for one in now.wanted.values() if queue in (None, one.queue)]
    shown = [_shown(one, now) for one in chosen]
    unasked = [name for name in now.queues if name not in now.wanted and queue in (None, name)]
    return jsonify(deployments=shown + [_by_hand(name, now) for name in unasked])


@blueprint.delete("/deployments")
def evict() -> Response:
    """Take a deployment, or one replica of it, away."""
    queue, replica = request.args.get("queue", ""), request.args.get("replica")
    now = view(farm())
    ids = [id for id in now.of(queue) if replica in (None, id)]
    if queue not in now.queues or (replica and not ids):
        raise NotFound(f"{replica or queue} is not deployed. Deployed: {_names(now)}.")
    one = now.wanted.get(queue)
    if replica and one is not None and one.replicas > 1:
        put_deployment(
            farm().settings.db_url, queue=queue, model_key=one.model_key, replicas=one.replicas - 1, dtype=one.dtype
        )
    else:
        remove_deployment(farm().settings.db_url, queue)
        fleet.clear_failure(farm().redis, queue)
        fleet.mark_evicted(farm().redis, queue)
    for id in ids:
        _stop(id, now.replicas[id])
    if len(ids) == len(now.of(queue)):
        farm().jobs.fail_waiting(queue, f"{queue} was evicted from the farm while the job waited.")
    celery.send_task(routing.RECONCILE, queue=routing.CONTROL)
    return jsonify(evicted=ids)


@blueprint.get("/jobs")
def unfinished() -> Response:
    """Every job that runs or waits, of all models or of ``?queue=``, in the order in which they will be taken."""
    jobs, queue = farm().jobs, request.args.get("queue")
    now = jobs.now()
    found = [one for name in jobs.queues() if queue in (None, name) for one in jobs.unfinished(name)]
    return jsonify(jobs=[_listed(one, now) for one in found])


@blueprint.get("/jobs/finished")
def finished() -> Response:
    """The latest jobs that are over, the newest first, of all, ``?queue=`` or ``?owner=``; at most ``?limit=``."""
    limit = request.args.get("limit", "100")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= MOST_FINISHED):
        raise BadRequest(f"limit must be a number from 1 to {MOST_FINISHED}.")
    chosen = {"queue": request.args.get("queue"), "owner": request.args.get("owner")}
    found = recent(farm().settings.db_url, **chosen, limit=int(limit))
    return jsonify(jobs=[{**asdict(one), **_times(one)} for one in found])


def _times(one: Finished) -> dict[str, str | None]:
    names = ("submitted_at", "started_at", "finished_at")
    return {name: when and when.isoformat() for name in names for when in [getattr(one, name)]}


@blueprint.delete("/jobs/<id>")
def kill(id: str) -> Response:
    """End anybody's job."""
    return jsonify(id=id, cancelled=farm().jobs.cancel(known_job(id).id))


@blueprint.get("/jobs/<id>/log")
def log(id: str) -> Response:
    """The lines that anybody's job printed."""
    return jsonify(id=id, lines=updates.log_lines(farm().redis, known_job(id).stream, id))


def _listed(one: Listed, now: float) -> dict[str, Any]:
    waits = one.status == Status.QUEUED
    since = one.submitted_at if waits else one.claimed_at
    return {
        "id": one.id,
        "queue": one.queue,
        "status": one.status,
        "owner": one.owner,
        "attempt": one.attempt,
        "replica_id": None if waits else one.replica,
        "submitted_at": one.submitted_at,
        "for_s": round(now - since, 1),
    }


def _stop(id: str, record: fleet.Record) -> None:
    fleet.mark_stopping(farm().redis, id)
    if record["managed"]:
        celery.send_task(routing.STOP_REPLICA, args=[id], queue=routing.node(record["node"]), expires=60)
    else:
        celery.control.shutdown(destination=[record["worker"]])


def _names(now: View) -> str:
    return ", ".join(now.queues) or "nothing"


def _valid(kind: type[Body]) -> Body:
    try:
        return kind.model_validate_json(request.get_data())
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the body"
        raise BadRequest(f"The order is not valid: {where}: {problem['msg']}.") from None


def _order() -> Order:
    order = _valid(Order)
    if order.dtype is not None and order.dtype not in DTYPES:
        raise BadRequest(f"dtype must be one of {', '.join(DTYPES)}.")
    return order


def _repo_id(checkpoint: str) -> str:
    """A held model's full name, or the name of one to download."""
    try:
        return snapshots.resolve(farm().settings.hf_home, checkpoint)
    except NdifError:
        if "/" in checkpoint:
            return checkpoint
        raise


def _shown(one: Deployment, now: View) -> dict[str, Any]:
    state, description = now.state(one.queue)
    hot = [id for id, r in now.of(one.queue).items() if r["state"] == State.HOT and not r.get("stopping")]
    key = ModelKey.parse(one.model_key)
    return {
        "queue": one.queue,
        "model_key": one.model_key,
        "repo_id": key.repo_id,
        "revision": key.revision,
        "task": key.task,
        "asked_for": one.queue in now.wanted,
        "replicas": one.replicas,
        "dtype": one.dtype,
        "state": state,
        "description": description,
        "hot": len(hot),
        "replica_ids": list(now.of(one.queue)),
    }


def _by_hand(queue: str, now: View) -> dict[str, Any]:
    record = next(iter(now.of(queue).values()))
    one = Deployment(queue, record["model_key"], len(now.of(queue)), record.get("dtype"), None)  # type: ignore[arg-type]
    return _shown(one, now)
