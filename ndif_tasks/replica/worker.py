"""The replica as a Celery worker: names of models on the command line become queues, and a bootstep holds the zygote.

``celery -A ndif_tasks worker -Q gpt2`` serves the one held model called gpt2. Torch-free.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from typing import Any, ClassVar

from celery import bootsteps
from celery.apps.worker import Worker
from celery.worker import state

from ndif_models import snapshots
from ndif_models.errors import BadRequest, LoadFailed, NdifError
from ndif_models.keys import ModelKey
from ndif_models.session import process_start_time
from ndif_models.settings import Settings, settings
from ndif_tasks import fleet, routing
from ndif_tasks.broker import connect
from ndif_tasks.jobs import Jobs
from ndif_tasks.sandbox import device, policy

from . import memory, run_job
from .holder_process import HolderProcess
from .zygote_process import ZygoteProcess, repo_folder

log = logging.getLogger(__name__)


class FarmWorker(Worker):
    """Celery's worker, which knows models by name."""

    model_key: ModelKey | None = None

    def setup_instance(self, queues: Any = None, **kwargs: Any) -> None:
        """Turn what was typed behind ``-Q`` into queues, or refuse in one sentence."""
        names = [name for name in (queues.split(",") if isinstance(queues, str) else queues or []) if name]
        try:
            names = [self._queue(name) for name in names]
        except NdifError as error:
            sys.exit(f"{error}")
        if self.model_key is not None:
            self.concurrency = 1  # each job has the deployment's threads to itself
        super().setup_instance(queues=names, **kwargs)
        quieten()

    def _queue(self, name: str) -> str:
        if not routing.is_model(name):
            return name
        if self.model_key is not None:
            raise BadRequest(
                "A worker holds one model: name one queue behind -Q, and start another worker for the other."
            )
        self.model_key = holdable(name, settings())
        return self.model_key.queue


def holdable(name: str, settings: Settings) -> ModelKey:
    """The key of a model that this machine can serve.

    Raises:
        NdifError: it is not held here, or does not fit in memory.
    """
    key = ModelKey.from_queue(name)
    key = key.with_repo_id(snapshots.resolve(settings.hf_home, key.repo_id))
    found = snapshots.find(settings.hf_home, key.repo_id, key.revision)
    if found is None:
        raise BadRequest(
            f"{key.repo_id} is held here, but not its revision {key.revision}: run `ndif deploy` to fetch it."
        )
    weight_bytes = snapshots.weight_bytes(settings.hf_home, found)
    # On a GPU weights are written where they are.
    copied = settings.room_to_train and device.chosen(os.environ) is None
    if reason := memory.refusal(key.queue, weight_bytes, copied, memory.now()):
        raise BadRequest(reason)
    return key


def quieten() -> None:
    """Leave out Celery's two lines for every task: a tick every few seconds says nothing, and jobs log their own."""
    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).setLevel(logging.WARNING)


class ReplicaStep(bootsteps.StartStopStep):
    """Loads the model before the worker consumes, and heartbeats from the first moment."""

    requires: ClassVar[set[str]] = {"celery.worker.components:Pool"}

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        self.holder: HolderProcess | None = None
        self.zygote: ZygoteProcess | None = None
        self.server: run_job.Server | None = None
        self.record: fleet.Record = {}
        self._stopping = threading.Event()
        super().__init__(worker, **kwargs)

    def include_if(self, worker: Any) -> bool:
        """Only workers of a model are replicas."""
        return getattr(worker, "model_key", None) is not None

    def start(self, worker: Any) -> None:
        """Start the zygote, wait until it holds the model, and serve."""
        self.settings, key = settings(), worker.model_key
        self.redis = connect(self.settings)
        self.id = os.environ.get(fleet.REPLICA_VARIABLE) or f"manual-{os.getpid()}@{self.settings.node_name}"
        self.dtype = os.environ.get(fleet.DTYPE_VARIABLE) or None
        self.threads = self.settings.replica_threads or len(os.sched_getaffinity(0))
        self.record = self._first_record(worker, key)
        self._heart = fleet.Heart(self._tell)
        limits = policy.load(self.settings.sandbox_policy)
        if gpu := device.chosen(os.environ):
            folder = repo_folder(self.settings, str(key))
            self.holder = HolderProcess(self.settings, str(key), self.dtype, gpu, folder)
            self._wait_loaded(key, self.holder)
            self.record["gpus"] = [gpu]
        self.zygote = ZygoteProcess(self.settings, str(key), self.dtype, self.threads, self.holder)
        self._wait_loaded(key, self.zygote)
        jobs = Jobs(self.redis, self.settings)
        self.server = run_job.Server(self.settings, limits, jobs, self.zygote, self.id, self.threads, self.holder)
        run_job.serve_with(self.server)
        fleet.clear_failure(self.redis, key.queue)
        self.record.update(self.zygote.facts, state=fleet.State.HOT, description="Serving.", threads=self.threads)
        self._tell()
        gc.collect()
        gc.freeze()  # what a replica is made of stays, and need not be walked while a client waits
        threading.Thread(target=self._mourn, name="zygote-watch", daemon=True).start()

    def stop(self, worker: Any) -> None:
        """End the zygote once the job that runs is over, unless told to end at once."""
        while self.server is not None and not self.server.drained(0.2) and not state.should_terminate:
            continue
        self.terminate(worker)

    def terminate(self, worker: Any) -> None:
        """End the zygote now; its job, if any, is another replica's after its lease."""
        self._stopping.set()
        run_job.serve_with(None)
        if self.zygote is not None:
            self.zygote.stop()
        if self.holder is not None:
            self.holder.stop()
        if self.record:
            self._heart.stop()
            fleet.forget(self.redis, "replica", self.id)

    def _wait_loaded(self, key: ModelKey, process: HolderProcess | ZygoteProcess) -> None:
        waited_s = 0.0
        try:
            while not process.loaded(0.2):
                state.maybe_shutdown()
                waited_s += 0.2
                if waited_s > self.settings.load_timeout_s:
                    raise LoadFailed(f"it did not load within {self.settings.load_timeout_s:g} s (NDIF_LOAD_TIMEOUT_S)")
        except LoadFailed as error:
            reason = f"{key.queue} cannot be loaded: {error}"
            if fleet.REPLICA_VARIABLE in os.environ:
                fleet.note_failure(self.redis, key.queue, reason)
            self.terminate(None)
            log.error("%s", reason)
            sys.exit(fleet.FAILED_STATUS)

    def _first_record(self, worker: Any, key: ModelKey) -> fleet.Record:
        pid = os.getpid()
        return {
            "queue": key.queue,
            "model_key": str(key),
            "repo_id": key.repo_id,
            "revision": key.revision,
            "task": key.task,
            "trust_remote_code": key.trust_remote_code,
            "state": fleet.State.LOADING,
            "description": "Loading the model.",
            "node": self.settings.node_name,
            "managed": fleet.REPLICA_VARIABLE in os.environ,
            "worker": worker.hostname,
            "worker_pid": pid,
            "worker_start_time": process_start_time(pid),
        }

    def _tell(self) -> None:
        fleet.beat(self.redis, "replica", self.id, self.record)

    def _mourn(self) -> None:
        """A replica without its zygote can serve nothing: end, and be replaced."""
        assert self.zygote is not None
        self.zygote.gone.wait()
        if not self._stopping.is_set():
            log.error("the process holding the model ended by itself; this replica ends too")
            state.should_stop = fleet.SERVED_STATUS
