"""Watches the job a replica runs: renews its lease, and has its runner killed when it must end.

One thread per replica, so that a job stuck in native code, or one flooding its socket, is watched all the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from redis.exceptions import RedisError

from ndif_tasks.jobs import Claimed, Jobs

log = logging.getLogger(__name__)
POLL_S = 0.5


class Verdict(StrEnum):
    """Why a job was ended from outside."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LOST = "lost"
    OUTPUT = "output"


@dataclass
class Watched:
    """One running job: when it must be over, how to end it, and why it was ended."""

    job: Claimed
    deadline: float
    kill: Callable[[], None]
    verdict: Verdict | None = None

    def end(self, verdict: Verdict) -> None:
        """Kill the runner, once, remembering why."""
        if self.verdict is None:
            self.verdict = verdict
            self.kill()


class Watch:
    """The watching thread."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._current: Watched | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._loop, name="watch", daemon=True).start()

    def begin(self, watched: Watched) -> None:
        """Watch a job from now on."""
        with self._changed:
            self._current = watched
            self._changed.notify()

    def finish(self) -> None:
        """The job is over."""
        with self._changed:
            self._current = None

    def _loop(self) -> None:
        while True:
            with self._changed:
                while self._current is None:
                    self._changed.wait()
                watched = self._current
                self._changed.wait(min(POLL_S, max(0.05, watched.deadline - time.monotonic())))
                changed = self._current is not watched
            if not changed:
                self._look(watched)

    def _look(self, watched: Watched) -> None:
        if time.monotonic() >= watched.deadline:
            watched.end(Verdict.TIMEOUT)
        try:
            answer = self._jobs.renew(watched.job)
        except RedisError:
            log.warning("job %s: its lease could not be renewed now", watched.job.id)
            return
        if self._current is watched and answer != "held":
            watched.end(Verdict.CANCELLED if answer == "cancel" else Verdict.LOST)
