"""The supervisor of one session: starts its services in order, answers ``ndif``, and stops them in reverse.

It alone holds the write end of the lifeline on which every process of the session hangs, so that its death, however it
comes, is theirs.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ndif_models import migrations, session
from ndif_models.errors import Conflict, NotFound, SettingError

from .channel import Channel
from .keeper import Keeper, State
from .lifeline import Lifeline
from .plan import API, CONTROL, NAMES, Plan, extended
from .services import SERVICES, clear_sockets

_END_LIMIT_S = 10.0
_LOG_TAIL_LINES = 5


class Supervisor:
    """The services of one session."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._say = say
        self._keepers: dict[str, Keeper] = {}
        self._lock = threading.RLock()
        # Two, so that all that uses the stores, replicas too, can be ended while they still answer.
        self._lifelines = {dependent: Lifeline() for dependent in (True, False)}

    def run(self, ready: Callable[[float], None]) -> None:
        """Start everything, call ``ready`` with the seconds it took, and serve until a signal to stop.

        Raises:
            SettingError: a service did not start; everything is stopped again.
        """
        began = time.monotonic()
        with _stop_signals() as stopped, Channel(self.plan.session_dir, self._answer) as channel:
            self._write()
            try:
                if self._start_all(stopped):
                    ready(time.monotonic() - began)
                    channel.serve(stopped)
            finally:
                self._stop_all()
                (self.plan.session_dir / session.FILE).unlink(missing_ok=True)

    def _start_all(self, stopped: int) -> bool:
        """Start every service of the plan; False when asked to stop meanwhile."""
        failures: list[Exception] = []
        starter = threading.Thread(target=self._start_services, args=(self.plan.names, failures), daemon=True)
        starter.start()
        with selectors.DefaultSelector() as selector:
            selector.register(stopped, selectors.EVENT_READ)
            while starter.is_alive():
                if selector.select(0.05):
                    return False
        if failures:
            raise failures[0]
        return True

    def _start_services(self, names: tuple[str, ...], failures: list[Exception]) -> None:
        try:
            for number, wave in enumerate(waves(names)):
                for need in {need for name in wave for need in SERVICES[name].needs} & set(names):
                    self._settle(need)
                self._begin(wave)
                if number == 0 and {API, CONTROL} & set(names):
                    migrations.upgrade_own(self.plan.settings.db_url)
            for name in names:
                self._settle(name)
        except Exception as error:
            failures.append(error)

    def _begin(self, names: list[str]) -> None:
        for name in names:
            service = SERVICES[name]
            lifeline = self._lifelines[bool(service.needs)]
            keeper = Keeper(service, self.plan, lifeline.fd, self._say, self._write)
            with self._lock:
                self._keepers[name] = keeper
            keeper.start()

    def _settle(self, name: str) -> None:
        with self._lock:
            keeper = self._keepers[name]
        if keeper.settle():
            return
        log = self.plan.log(name)
        raise SettingError(f"{keeper.reason or f'{name} was stopped.'} The end of {log}:\n{_tail(log)}")

    def _stop_all(self) -> None:
        """Stop in reverse: first what needs others, all at once, then what it needed."""
        with self._lock:
            keepers = list(self._keepers.values())
        for dependent in (True, False):
            wave = [k for k in keepers if bool(k.service.needs) is dependent]
            threads = [threading.Thread(target=keeper.stop) for keeper in wave]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if not self._lifelines[dependent].end(_END_LIMIT_S):
                self._say("Some processes of this session do not end; they are being killed.")
        clear_sockets(self.plan.session_dir)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what ``ndif start SERVICE`` or ``ndif stop SERVICE`` asks."""
        name = str(request.get("service"))
        if name not in SERVICES:
            raise NotFound(f"{name} is no service; the services are {', '.join(NAMES)}.")
        with self._lock:
            keeper = self._keepers.get(name)
        running = keeper is not None and keeper.state not in (State.STOPPED, State.FAILED)
        if request.get("op") == "stop":
            if keeper is None or not running:
                raise Conflict(f"{name} is not running.")
            keeper.stop()
            self._say(f"{name} was stopped.")
        else:
            if running:
                raise Conflict(f"{name} is running already.")
            if name not in self.plan.names:
                self.plan = extended(self.plan, name)
            self._begin([name])
            self._settle(name)
            self._say(f"{name} was started.")
        return {"service": name, "state": str(self._keepers[name].state)}

    def _write(self) -> None:
        """Bring ``session.json`` up to date."""
        with self._lock:
            services = {name: self._keepers[name].record() for name in NAMES if name in self._keepers}
            record = {
                "pid": os.getpid(),
                "start_time": session.process_start_time(os.getpid()),
                "variables": self.plan.variables(),
                "services": services,
                "lifelines": [lifeline.inode for lifeline in self._lifelines.values()],
            }
            session.write(self.plan.session_dir, record)


def waves(names: Sequence[str]) -> list[list[str]]:
    """The services in groups, each of which needs only what is in the groups before it, or not in ``names`` at all."""
    found: list[list[str]] = []
    begun: set[str] = set()
    while left := [name for name in names if name not in begun]:
        found.append([name for name in left if not set(SERVICES[name].needs) & set(left)])
        begun |= set(found[-1])
    return found


@contextmanager
def _stop_signals() -> Iterator[int]:
    """A descriptor that becomes readable at SIGTERM or SIGINT. A second SIGINT ends the process at once."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def stop(number: int, _frame: object) -> None:
        os.write(write, b"x")
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    # A closed terminal is no reason to leave services half stopped.
    signal.signal(signal.SIGHUP, stop)
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


def _tail(path: Any) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
    except OSError:
        return "(empty)"
