"""Which models the farm serves: deployments that should run, and replicas that do."""

from __future__ import annotations

from dataclasses import dataclass

from ndif_models.errors import LoadFailed, NotDeployed
from ndif_models.fleet import Deployment, deployments
from ndif_models.keys import ModelKey
from ndif_tasks import fleet
from ndif_tasks.fleet import Record, State

from .farm import Farm

_ORDER = [State.HOT, State.LOADING, State.DOWNLOADING, State.PENDING, State.FAILED]


@dataclass(frozen=True)
class View:
    """The fleet at one moment."""

    wanted: dict[str, Deployment]
    replicas: dict[str, Record]
    failures: dict[str, str]

    def of(self, queue: str) -> dict[str, Record]:
        """The replicas of one model."""
        return {id: record for id, record in self.replicas.items() if record["queue"] == queue}

    def state(self, queue: str) -> tuple[State, str]:
        """The state of a model and a sentence about it."""
        records = [record for record in self.of(queue).values() if not record.get("stopping")]
        best = min(records, key=lambda record: _ORDER.index(record["state"]), default=None)
        if best is not None and best["state"] == State.HOT:
            return State.HOT, best["description"]
        if queue in self.failures:
            return State.FAILED, self.failures[queue]
        if best is not None:
            return State(best["state"]), best["description"]
        return State.PENDING, "Waiting for a node to start a replica."

    @property
    def queues(self) -> list[str]:
        """Every model that is deployed or served."""
        served = {record["queue"] for record in self.replicas.values() if record["state"] == State.HOT}
        return sorted(set(self.wanted) | served)


def view(farm: Farm) -> View:
    """Look at the fleet."""
    wanted = {one.queue: one for one in deployments(farm.settings.db_url)}
    found = [(queue, fleet.failure(farm.redis, queue)) for queue in wanted]
    failures = {queue: failure.reason for queue, failure in found if failure is not None}
    return View(wanted, fleet.alive(farm.redis, "replica"), failures)


def serving_key(farm: Farm, key: ModelKey) -> ModelKey:
    """The key of the deployment a request is for.

    Raises:
        NotDeployed: nobody deployed it; the sentence says what is.
        LoadFailed: it is deployed and could not be loaded; the sentence says why.
    """
    if _is_served(farm, key.queue):
        return key
    now = view(farm)
    if key.queue not in now.queues:
        served = ", ".join(queue for queue in now.queues if now.state(queue)[0] != State.FAILED) or "nothing yet"
        raise NotDeployed(
            f"{key.queue} is not deployed on this farm; its operators can `ndif deploy` it. Deployed: {served}."
        )
    state, description = now.state(key.queue)
    if state == State.FAILED:
        raise LoadFailed(description)
    return key


def _is_served(farm: Farm, queue: str) -> bool:
    """Whether a replica serves a queue now; the common case, which needs no look into the database."""
    records = fleet.alive(farm.redis, "replica").values()
    return any(one["queue"] == queue and one["state"] == State.HOT and not one.get("stopping") for one in records)
