"""A replica at work: its zygote, the runner forked ahead, and the task that takes the next job of a queue.

Torch-free, and it parses nothing of a runner but a capped header.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time

from ndif_models.errors import NdifError, Unavailable
from ndif_models.settings import Settings
from ndif_tasks import routing
from ndif_tasks.app import app
from ndif_tasks.jobs import Jobs
from ndif_tasks.sandbox.policy import Policy

from .attempt import Attempt
from .holder_process import HolderProcess
from .watch import Watch, Watched
from .zygote_process import Runner, ZygoteProcess

log = logging.getLogger(__name__)

#: How long a killed runner on a GPU may take to be gone.
RUNNER_END_S = 60.0


class Server:
    """What a replica runs jobs with: its zygote, the runner forked ahead, and the job store."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        jobs: Jobs,
        zygote: ZygoteProcess,
        replica: str,
        threads: int,
        holder: HolderProcess | None = None,
    ) -> None:
        self.settings = settings
        self.policy = policy
        self.jobs = jobs
        self.zygote = zygote
        self.replica = replica
        self.threads = threads
        self.holder = holder
        self.watch = Watch(jobs)
        self._busy = threading.Lock()
        self._draining = False
        self._ahead: Runner | None = None
        #: As the last job's: those that come together are often alike.
        self._scratch_bytes = policy.default.scratch_bytes
        self.fork_ahead()

    def run_next(self, queue: str) -> None:
        """Run the next job of a queue, if one waits."""
        with self._busy:
            if not self._draining:
                self._run_next(queue)

    def drained(self, wait_s: float) -> bool:
        """Take no other job; whether the one that runs is over, after waiting at most ``wait_s`` for it."""
        self._draining = True
        over = self._busy.acquire(timeout=wait_s)
        if over:
            self._busy.release()
        return over

    def _run_next(self, queue: str) -> None:
        if self.zygote.gone.is_set():
            return
        job = self.jobs.claim(queue, self.replica)
        if job is None:
            return
        log.info("job %s: attempt %d", job.id, job.attempt)
        name, limits = self.policy.limits(job.tags)
        if not limits.wall_s:
            limits = limits.model_copy(update={"wall_s": self.settings.default_execution_timeout_seconds})
        try:
            runner = self._take(limits.scratch_bytes)
        except Unavailable:
            self.jobs.hand_back(job.id, job.attempt)
            return
        watched = Watched(job, time.monotonic() + limits.wall_s, lambda: self.zygote.kill(runner))
        self.watch.begin(watched)
        try:
            Attempt(self, job, runner, watched, name, limits).run()
        finally:
            self.watch.finish()
            self.zygote.kill(runner)
            if self.holder is not None:
                self._restore(self.holder, job.id, runner)
            runner.close()
            self.fork_ahead()

    def _restore(self, holder: HolderProcess, job: str, runner: Runner) -> None:
        """Have the weights put right before anybody else computes with them, or let nobody."""
        try:
            if runner.wait(RUNNER_END_S) is None:
                raise Unavailable("The process of the last job does not end.")
            changed = holder.restore()
        except Unavailable as error:
            log.error("job %s: the weights cannot be checked: %s", job, error)
            self.zygote.stop()
            return
        if changed:
            log.info("job %s: it changed %d bytes of the weights; they are as before", job, changed)

    def fork_ahead(self) -> None:
        """Have the next job's runner made, unless it is."""
        if self._ahead is None:
            with contextlib.suppress(Unavailable):  # the next job will find out
                self._ahead = self.zygote.fork(self._scratch_bytes)

    def _take(self, scratch_bytes: int) -> Runner:
        self._scratch_bytes = scratch_bytes
        runner, self._ahead = self._ahead, None
        if runner is not None and runner.status is None and runner.scratch_bytes == scratch_bytes:
            return runner
        if runner is not None:
            self.zygote.kill(runner)
            runner.close()
        return self.zygote.fork(scratch_bytes)


_server: Server | None = None


def serve_with(server: Server | None) -> None:
    """Say what this process runs jobs with."""
    global _server
    _server = server


@app.task(name=routing.RUN_NEXT, ignore_result=True)  # type: ignore[untyped-decorator]
def run_next(queue: str) -> None:
    """A ticket was taken: run the next job of its queue."""
    if _server is None:
        raise NdifError("This worker serves no model.")
    _server.run_next(queue)
