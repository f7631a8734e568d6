"""Names of queues and tasks. A model's queue is ``ModelKey.queue``; these are the farm's own."""

from __future__ import annotations

CONTROL = "control"
NODE_PREFIX = "node."

RUN_NEXT = "ndif.run_next"
RECONCILE = "ndif.reconcile"
KEEP_PROMISES = "ndif.keep_promises"
WRITE_DOWN = "ndif.write_down"
SWEEP_OBJECTS = "ndif.sweep_objects"
START_REPLICA = "ndif.start_replica"
STOP_REPLICA = "ndif.stop_replica"


def node(name: str) -> str:
    """The queue of one node's agent."""
    return f"{NODE_PREFIX}{name}"


def is_model(queue: str) -> bool:
    """Whether a queue serves a model, and is not one of the farm's own."""
    return queue != CONTROL and not queue.startswith(NODE_PREFIX)
