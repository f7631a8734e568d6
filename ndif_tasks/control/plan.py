"""Decides which replicas to start and stop. Pure: the fleet's view in, steps out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ndif_tasks.fleet import Record, State


@dataclass(frozen=True)
class Wanted:
    """One deployment: how many replicas of what should run."""

    queue: str
    model_key: str
    replicas: int
    dtype: str | None = None


@dataclass(frozen=True)
class Start:
    """Start a replica of a deployment on a node."""

    wanted: Wanted
    node: str


@dataclass(frozen=True)
class Stop:
    """Stop a replica on its node."""

    replica: str
    node: str


def plan(
    wanted: Sequence[Wanted], replicas: Mapping[str, Record], nodes: Sequence[str], resting: Collection[str]
) -> list[Start | Stop]:
    """The steps from what runs to what should.

    Args:
        wanted: every deployment.
        replicas: what runs, by id, oldest first; replicas started by hand are left alone, and count once they serve.
        nodes: nodes that can take replicas.
        resting: queues whose model could not be loaded a while ago; nothing is started for them.
    """
    steps: list[Start | Stop] = []
    load = Counter({node: 0 for node in nodes})
    load.update(record["node"] for record in replicas.values() if record["node"] in load)
    serving = {id: record for id, record in replicas.items() if _counts(record)}
    for one in wanted:
        ids = [id for id, record in serving.items() if record["queue"] == one.queue]
        managed = [id for id in ids if serving[id]["managed"]]
        for id in managed[::-1][: max(0, len(ids) - one.replicas)]:
            steps.append(Stop(id, serving[id]["node"]))
        for _ in range(one.replicas - len(ids)):
            if load and one.queue not in resting:
                node = min(load, key=lambda name: (load[name], name))
                load[node] += 1
                steps.append(Start(one, node))
    known = {one.queue for one in wanted}
    steps += [Stop(id, r["node"]) for id, r in serving.items() if r["managed"] and r["queue"] not in known]
    return steps


def _counts(record: Record) -> bool:
    if record["state"] == State.FAILED or record.get("stopping"):
        return False
    return bool(record["managed"]) or record["state"] == State.HOT
