"""What the farm tells of itself to clients: status, environment, identity, pulse."""

from __future__ import annotations

import json
from typing import Any, cast

from flask import Blueprint, Response, jsonify, request

from ndif_models.errors import Unavailable
from ndif_tasks import fleet
from ndif_tasks.fleet import State
from ndif_web.auth import known
from ndif_web.deployed import View, view
from ndif_web.farm import farm

blueprint = Blueprint("status", __name__)

_APPLICATION = {State.HOT: "RUNNING", State.FAILED: "UNHEALTHY"}


@blueprint.get("/ping")
def ping() -> Response:
    """Whether the web tier answers."""
    return jsonify("pong")


@blueprint.route("/connected", methods=["GET", "HEAD"])
def connected() -> Response:
    """Whether at least one worker answers: a node's agent or a replica.

    Raises:
        Unavailable: none does.
    """
    if not fleet.alive(farm().redis, "node") and not fleet.alive(farm().redis, "replica"):
        raise Unavailable("No worker is connected to this farm.")
    return jsonify(connected=True)


@blueprint.get("/status")
def status() -> Response:
    """Every replica, and every deployment that has none, as nnsight reads them."""
    now = view(farm())
    entries = {id: _entry(id, record, now) for id, record in now.replicas.items() if record.get("repo_id")}
    shown = {entry["queue"] for entry in entries.values()}
    for queue, one in now.wanted.items():
        if queue not in shown:
            state, description = now.state(queue)
            record = {"queue": queue, "model_key": one.model_key, "state": state, "description": description}
            entries[queue] = _entry(None, record, now)
    nodes = fleet.alive(farm().redis, "node")
    return jsonify(deployments=entries, cluster={"nodes": nodes})


def _entry(id: str | None, record: fleet.Record, now: View) -> dict[str, Any]:
    key = json.loads(record["model_key"].partition(":")[2])
    return {
        "deployment_level": "HOT" if record["state"] != State.FAILED else "COLD",
        "application_state": _APPLICATION.get(record["state"], "DEPLOYING"),
        "model_key": record["model_key"],
        "repo_id": key["repo_id"],
        "revision": key.get("revision") or "main",
        "task": key.get("task"),
        "trust_remote_code": bool(key.get("trust_remote_code")),
        "replica_id": id,
        "queue": record["queue"],
        "description": record["description"],
        "waiting": farm().jobs.waiting(record["queue"]),
        "pinned": False,
        "dtype": record.get("dtype"),
        "threads": record.get("threads"),
        "walls": record.get("walls"),
        "n_params": record.get("n_params"),
        "size_bytes": record.get("size_bytes"),
        "gpus": record.get("gpus", []),
        "config": record.get("config"),
        "node": record.get("node"),
        "schedule": None,
    }


@blueprint.get("/env")
def env() -> Response:
    """The workers' Python and packages.

    Raises:
        Unavailable: no worker has told yet.
    """
    text = cast(bytes | None, farm().redis.get("ndif:environment"))
    if text is None:
        raise Unavailable("No worker has told its environment yet; is one running?")
    return Response(text, mimetype="application/json")


@blueprint.get("/whoami")
def whoami() -> Response:
    """Who the key belongs to; nulls when the farm does not know it."""
    identity = known(request, farm().settings)
    return jsonify(email=identity.email if identity else None, tags=list(identity.tags) if identity else [])
