"""One service kept alive: started on the session's lifeline, probed until it is ready, started again when it dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from ndif_tasks.process import Process, spawn

from .plan import Plan
from .services import Service

_POLL_S = 0.1
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
#: What has lived so long does not end as soon as it is started: the next pause is the first again.
_LONG_LIFE_S = 10.0


class State(StrEnum):
    """What a service is doing."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"


class Keeper:
    """Keeps one service. Its own thread does the work; any thread may call its methods.

    A service that ends before it was ever ready has FAILED and is left so: what is wrong with it will still be wrong in
    half a second. Once it has been ready it is started again for as long as nobody stops it.
    """

    def __init__(
        self, service: Service, plan: Plan, lifeline: int, report: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        self.service = service
        self.state = State.WAITING
        self.restarts = 0
        self.reason = ""
        self._plan = plan
        self._lifeline = lifeline
        self._report = report
        self._changed = changed
        self._process: Process | None = None
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keeper-{service.name}", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def settle(self) -> bool:
        """Wait until the service is ready for the first time; False when it has failed or was stopped before."""
        self._settled.wait()
        return self.state not in (State.FAILED, State.STOPPED)

    def stop(self) -> None:
        """TERM, then KILL; returns when the service and all it started are gone."""
        self._stopping.set()
        self._thread.join()
        self._become(State.STOPPED)
        self._settled.set()

    def record(self) -> dict[str, Any]:
        """The service's entry in ``session.json``."""
        process = self._process
        named = {"pid": process.pid, "start_time": process.start_time} if process else {"pid": None, "start_time": None}
        return {**named, "restarts": self.restarts, "state": str(self.state)}

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            was_ready = self._live()
            if self._stopping.is_set():
                return
            if not was_ready and not self._settled.is_set():
                self._fail(f"{self.service.name} ended before it was ready (status {self._status()}).")
                return
            if time.monotonic() - began > max(_LONG_LIFE_S, 2 * pause_s):
                pause_s = _FIRST_PAUSE_S
            self.restarts += 1
            self._become(State.RESTARTING)
            self._report(f"{self.service.name} ended (status {self._status()}); starting it again in {pause_s:g} s.")
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _live(self) -> bool:
        """One life of the process, from start to end; whether it was ever ready."""
        try:
            self._process = self._spawn()
        except OSError as error:
            self._report(f"{self.service.name} cannot be started ({error.strerror}).")
            return False
        self._become(State.STARTING)
        ready, began = False, time.monotonic()
        while not self._stopping.is_set() and self._process.poll() is None:
            if not ready and self.service.probe(self._plan):
                ready = True
                self._become(State.READY)
                self._settled.set()
            elif not ready and time.monotonic() - began > self.service.ready_limit_s:
                self._report(f"{self.service.name} does not answer {self.service.ready_limit_s:g} s after its start.")
                break
            self._stopping.wait(_POLL_S)
        self._process.stop(self.service.grace_s)
        return ready

    def _spawn(self) -> Process:
        return spawn(
            self.service.prepare(self._plan),
            env=self._plan.environment(),
            log_path=self._plan.log(self.service.name),
            lifeline_fd=self._lifeline,
            cwd=self._plan.folder(self.service.cwd) if self.service.cwd else None,
            grace_s=min(self.service.grace_s, 2.0),
            spare_leashes=self.service.spare_leashes,
        )

    def _status(self) -> int | None:
        return self._process.poll() if self._process else None

    def _fail(self, reason: str) -> None:
        self.reason = reason
        self._become(State.FAILED)
        self._settled.set()

    def _become(self, state: State) -> None:
        self.state = state
        self._changed()
