"""The zygote: holds one model's weights, stays single-threaded for ever, and forks a runner for each job.

Started by a replica as ``python -m ndif_tasks.sandbox.zygote FD`` with an allow-listed environment and no secret: its
memory is every runner's memory. It never sees a payload or a result; each runner's socket goes to the replica. A
model's own code may be anybody's: before it loads one it moves into a house of its own, where the kernel allows that.
On a GPU somebody else holds the weights: this process gives its own away once it has loaded, and never uses the device.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import device, hugepages, jail, kernel, places, protocol
from .walls import Refused
from .walls.namespaces import House


class Zygote:
    """The loop: take orders from the replica, fork, kill, reap."""

    def __init__(self, control: socket.socket, order: dict[str, Any], arena: Sequence[int] = ()) -> None:
        """``order``: the replica's first: the model, how to hold it, what a job may read, which walls it must have;
        ``arena``: descriptors of the weights, where they are on a GPU."""
        self.control = control
        self.order = order
        self.runners: dict[int, int] = {}  # pid -> the replica's number for it
        self.model: Any = None
        self.rehearsal: Any = None
        self.readable = [*places.python(), *map(Path, order["readable"])]
        self.device = device.of(order["gpu"])
        self.arena = tuple(arena)
        self.lease: Any = None
        self.house: House | None = None

    def run(self) -> None:
        """Move in, load, then serve until the replica is gone; leaves no child behind."""
        try:
            if self._move_in() and self._load():
                self._serve()
        finally:
            for pid in list(self.runners):
                _kill_group(pid)
            self._sweep()

    def _move_in(self) -> bool:
        try:
            self.walls, self.house = jail.move_in(self.readable, self.device, self.order["walls"])
            jail.demand_readable(self.order["readable"])
        except Refused as error:
            self._tell({"event": "failed", "reason": str(error)})
            return False
        return True

    def _load(self) -> bool:
        from . import model as loading
        from . import rehearsal

        try:
            self.model = loading.load(self.order["model_key"], self.order["dtype"])
            facts = loading.facts(self.model)
            self.rehearsal = rehearsal.Rehearsal(self.model)
            with contextlib.suppress(Exception):  # it only saves time
                self.rehearsal.play()
            if self.arena:
                self._take_lease()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".strip()
            self._tell({"event": "failed", "reason": reason[:4000]})
            return False
        gc.collect()
        # A collector walking the shared objects would copy every page it looks at into each runner.
        gc.freeze()
        hugepages.gather()
        self._tell({"event": "ready", "walls": self.walls, **facts})
        return True

    def _take_lease(self) -> None:
        from .weights import lease

        self.lease = lease.take(self.model, self.order["gpu"], self.order["fingerprint"], self.arena)

    def _serve(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self.control:
                        if not self._obey():
                            return
                    else:
                        os.read(wake_read, 4096)
                self._reap()

    def _obey(self) -> bool:
        packet = protocol.receive_packet(self.control)
        if packet is None:
            return False
        order, descriptors = packet
        if order["op"] == "fork":
            self._fork(order, descriptors)
        elif order["op"] == "kill":
            for pid, number in self.runners.items():
                if number == order["runner"]:
                    _kill_group(pid)
        return True

    def _fork(self, order: dict[str, Any], descriptors: list[int]) -> None:
        assert_single_threaded()
        if self.lease is not None:
            assert_no_context()
        started = time.monotonic()
        try:
            pid = os.fork() if self.house is None else self.house.fork()
        except OSError as error:  # no memory, or no processes left
            print(f"a runner could not be forked: {error}", file=sys.stderr)
            pid = -1
        if pid == 0:
            self._become_runner(order, descriptors)
        elapsed_ms = (time.monotonic() - started) * 1000
        for descriptor in descriptors:
            os.close(descriptor)
        if pid == -1:
            self._tell_end(order["runner"], protocol.UNPREPARED)
            return
        self.runners[pid] = order["runner"]
        # The replica knows it by another number than this tree does: a handle is right in both.
        handle = os.pidfd_open(pid)
        self._tell({"event": "forked", "runner": order["runner"], "fork_ms": elapsed_ms}, (handle,))
        os.close(handle)

    def _become_runner(self, order: dict[str, Any], descriptors: list[int]) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            kernel.name_process("ndif-runner")
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)
            os.setsid()
            _close_others([*descriptors, *self.arena])
            from . import runner

            # What the trial found to stand must stand around each: a job is told which walls it ran behind.
            walls = [wall for wall in self.walls if not jail.is_refused(self.walls, wall)]
            cell = jail.Cell(self.readable, order["scratch_bytes"], walls, self.device)
            prepared = runner.Prepared(self.model, self.rehearsal, self.order["threads"], self.lease)
            runner.serve(prepared, descriptors, self.house, cell)
            status = 0
        finally:
            # Nothing registered in the zygote, or by the block, runs at the end of a runner.
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self.runners.pop(pid, None)
            if number is None:
                self._sweep()  # what died was a runner's orphan, and may have left some of its own
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # not the process: its number may be somebody else's by now
            self._sweep()
            cpu_s = used.ru_utime + used.ru_stime
            self._tell_end(number, os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024, cpu_s)

    def _sweep(self) -> None:
        """Kill what runners left behind: their orphans come to the zygote, which is their subreaper."""
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                children = [int(pid) for pid in file.read().split()]
        except OSError:
            return
        for pid in children:
            if pid not in self.runners:
                os.kill(pid, signal.SIGKILL)

    def _tell_end(self, runner: int, status: int, peak_bytes: int = 0, cpu_s: float = 0.0) -> None:
        used = {"peak_bytes": peak_bytes, "cpu_s": cpu_s}
        self._tell({"event": "exited", "runner": runner, "status": status, **used})

    def _tell(self, event: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        protocol.send_packet(self.control, event, descriptors)


def assert_single_threaded() -> None:
    """A second thread makes forked children hang (OpenMP, locks held by nobody)."""
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise RuntimeError(f"The zygote has {len(threads)} threads and must have one.")


def assert_no_context() -> None:
    """A context is its process's: what is forked from one that has used the GPU can never use it."""
    import torch

    if torch.cuda.is_initialized():
        raise RuntimeError("The zygote has used the GPU and must not.")


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _close_others(kept: list[int]) -> None:
    """What else the zygote has open, a runner could meddle with: its selector above all."""
    edges = [2, *sorted(kept), os.sysconf("SC_OPEN_MAX")]
    for low, high in itertools.pairwise(edges):
        os.closerange(low + 1, high)


def main() -> None:
    """Entry point; the one argument is the control socket's descriptor."""
    kernel.name_process("ndif-zygote")
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    packet = protocol.receive_packet(control)
    if packet is not None:
        Zygote(control, *packet).run()


if __name__ == "__main__":
    main()
