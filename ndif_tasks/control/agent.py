"""One per node: starts and stops replica processes here, tells of the node, and of replicas that ended by themselves.

A Celery worker on ``node.<name>``. Replicas outlive it: each is on its own leash, tied to ``ndif start``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil
from celery import bootsteps
from redis import Redis
from redis.exceptions import RedisError

from ndif_models import snapshots
from ndif_models.environment import environment
from ndif_models.errors import NdifError
from ndif_models.keys import ModelKey
from ndif_models.settings import Settings, settings
from ndif_tasks import fleet, routing
from ndif_tasks.app import app
from ndif_tasks.broker import connect
from ndif_tasks.process import Process, lifeline_from_environment, signal_recorded, spawn
from ndif_tasks.sandbox import device

log = logging.getLogger(__name__)
STOP_GRACE_S = 20.0

#: What a replica has no use for, and therefore is not given.
WITHHELD = (
    "NDIF_DATABASE_URL",
    "NDIF_OBJECT_STORE_ACCESS_KEY",
    "NDIF_OBJECT_STORE_SECRET_KEY",
    "NDIF_SIGNING_KEY",
    "NDIF_API_KEY",
    "HF_TOKEN",
    # Of the shell that started the farm: which GPU a replica has is the agent's to say.
    device.VARIABLE,
)


@dataclass
class Child:
    """A replica this agent is bringing up or has started."""

    id: str
    record: fleet.Record
    process: Process | None = None
    stopping: threading.Event = field(default_factory=threading.Event)


class Agent:
    """The node's replicas, as far as this process started them."""

    def __init__(self, settings: Settings, redis: Redis) -> None:
        self.settings = settings
        self.redis = redis
        self.children: dict[str, Child] = {}
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to heartbeat."""
        self.redis.set("ndif:environment", json.dumps(environment()))
        self._heart = fleet.Heart(self._tell)

    def stop(self) -> None:
        """Leave: the node is no longer offered replicas; those that run go on."""
        self._stopping.set()
        self._heart.stop()
        fleet.forget(self.redis, "node", self.settings.node_name)

    def start_replica(self, id: str, model_key: str, dtype: str | None) -> None:
        """Have the model fetched if it is not held, and the replica started and watched, in a thread of its own."""
        if id in self.children:
            return
        key = ModelKey.parse(model_key)
        record = {"queue": key.queue, "model_key": model_key, "repo_id": key.repo_id, "managed": True}
        record |= {"node": self.settings.node_name, "state": fleet.State.PENDING, "description": "Starting."}
        child = self.children[id] = Child(id, record)
        threading.Thread(target=self._raise, args=(child, key, dtype), name=f"replica {id}", daemon=True).start()

    def stop_replica(self, id: str) -> None:
        """Stop a replica of this node, whoever started it."""
        child = self.children.get(id)
        if child is not None:
            child.stopping.set()  # whoever waits for its end does the rest
            return
        record = fleet.alive(self.redis, "replica").get(id)
        if record is not None and "worker_pid" in record:
            signal_recorded(record["worker_pid"], record["worker_start_time"], signal.SIGTERM)

    def _raise(self, child: Child, key: ModelKey, dtype: str | None) -> None:
        try:
            self._fetch(child, key)
            if not child.stopping.is_set():
                self._run(child, key, dtype)
        except NdifError as error:
            self._note_failure(key, f"{key.queue} cannot be loaded: {error}")
        except Exception:
            log.exception("replica %s", child.id)
            self._note_failure(key, f"{key.queue} cannot be loaded: the node's agent failed; see its log.")
        finally:
            self.children.pop(child.id, None)
            if not self._stopping.is_set():  # a replica outlives its agent, and goes on telling of itself
                fleet.forget(self.redis, "replica", child.id)

    def _fetch(self, child: Child, key: ModelKey) -> None:
        def progress(done: int, total: int) -> None:
            child.record["state"] = fleet.State.DOWNLOADING
            child.record["description"] = f"Downloading: {done >> 20} of {total >> 20} MiB."

        revision, home, token = key.revision, self.settings.hf_home, self.settings.hf_token
        snapshots.download(key.repo_id, revision, home, token, on_progress=progress)
        child.record["description"] = "Starting the replica."

    def _run(self, child: Child, key: ModelKey, dtype: str | None) -> None:
        logs = self.settings.session_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        log_path = logs / f"replica-{child.id}.log"
        process = child.process = self._spawn(child.id, key, dtype, log_path)
        while not process.wait(0.2):
            if self._stopping.is_set():
                return
            if child.stopping.is_set():
                process.stop(STOP_GRACE_S)
        if child.stopping.is_set():
            return
        status = process.poll()
        log.error("replica %s of %s ended by itself with status %s", child.id, key.queue, status)
        explained = status in (0, fleet.SERVED_STATUS, fleet.FAILED_STATUS)
        if not explained and not self._is_hot(child.id):
            self._note_failure(key, f"{key.queue} cannot be loaded: {_last_line(log_path)}")

    def _spawn(self, id: str, key: ModelKey, dtype: str | None, log_path: Path) -> Process:
        env = {name: value for name, value in os.environ.items() if name not in WITHHELD}
        env |= {fleet.REPLICA_VARIABLE: id, fleet.DTYPE_VARIABLE: dtype or ""}
        argv = [sys.executable, "-m", "celery", "-A", "ndif_tasks", "worker", "-Q", key.queue, "-n", f"{id}@%h"]
        argv += ["--without-gossip", "--without-mingle", "--loglevel", self.settings.log_level]
        return spawn(argv, env=env, log_path=log_path, lifeline_fd=lifeline_from_environment(), grace_s=2.0)

    def _is_hot(self, id: str) -> bool:
        try:
            record = fleet.alive(self.redis, "replica").get(id)
        except RedisError:
            return False
        return record is not None and record["state"] == fleet.State.HOT

    def _note_failure(self, key: ModelKey, reason: str) -> None:
        log.error("%s", reason)
        fleet.note_failure(self.redis, key.queue, reason)
        app.send_task(routing.RECONCILE, queue=routing.CONTROL)

    def _tell(self) -> None:
        memory = psutil.virtual_memory()
        node = {"cpus": os.cpu_count(), "memory_bytes": memory.total, "free_bytes": memory.available, "gpus": []}
        fleet.beat(self.redis, "node", self.settings.node_name, node)
        told = fleet.alive(self.redis, "replica") if self.children else {}
        for child in list(self.children.values()):
            if "worker_pid" not in told.get(child.id, {}):  # it does not yet tell of itself
                fleet.beat(self.redis, "replica", child.id, child.record)


def _last_line(log_path: Path) -> str:
    try:
        with open(log_path, errors="replace") as file:
            lines = deque((line.strip() for line in file if line.strip()), maxlen=1)
    except OSError:
        lines = deque()
    return lines[0][:500] if lines else "the replica ended without a word"


_agent: Agent | None = None


class AgentStep(bootsteps.StartStopStep):
    """Makes a Celery worker on ``node.<name>`` the node's agent."""

    requires: ClassVar[set[str]] = {"celery.worker.components:Pool"}

    def include_if(self, worker: Any) -> bool:
        """Only a worker that consumes this node's queue."""
        return routing.node(settings().node_name) in worker.app.amqp.queues.consume_from

    def start(self, worker: Any) -> None:
        """Start heartbeating before orders are taken."""
        global _agent
        _agent = Agent(settings(), connect(settings()))
        _agent.start()

    def stop(self, worker: Any) -> None:
        """Withdraw the node."""
        if _agent is not None:
            _agent.stop()

    terminate = stop


def _this() -> Agent:
    if _agent is None:
        raise NdifError("This worker is no node's agent.")
    return _agent


@app.task(name=routing.START_REPLICA, ignore_result=True)  # type: ignore[untyped-decorator]
def start_replica(id: str, model_key: str, dtype: str | None) -> None:
    """Start a replica on this node."""
    _this().start_replica(id, model_key, dtype)


@app.task(name=routing.STOP_REPLICA, ignore_result=True)  # type: ignore[untyped-decorator]
def stop_replica(id: str) -> None:
    """Stop a replica on this node."""
    _this().stop_replica(id)
