"""The zygote: holds one model's weights, stays single-threaded for ever, and forks a runner for each job.

Started by a replica as ``python -m ndif_tasks.sandbox.zygote FD`` with an allow-listed environment and no secret:
its memory is every runner's memory. It never sees a payload or a result; each runner's socket goes to the replica.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from ndif_models import snapshots
from ndif_models.keys import ModelKey

from . import hugepages, jail, protocol

PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Zygote:
    """The loop: take orders from the replica, fork, kill, reap."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.runners: dict[int, int] = {}  # pid -> the replica's number for it
        self.model: Any = None
        self.rehearsal: Any = None
        self.readable: list[Path] = []
        self.walls: list[str] = []
        self.threads = 1

    def run(self) -> None:
        """Load, then serve until the replica is gone; leaves no child behind."""
        packet = protocol.receive_packet(self.control)
        if packet is None or not self._load(packet[0]):
            return
        try:
            self._serve()
        finally:
            for pid in list(self.runners):
                _kill_group(pid)
            self._sweep()

    def _load(self, order: dict[str, Any]) -> bool:
        from . import model as loading
        from . import rehearsal

        self.threads, self.walls = order["threads"], order["walls"]
        walls = jail.try_out()
        if lacks := jail.missing(walls, jail.WALLS):
            print(lacks, file=sys.stderr)
        reason = jail.missing(walls, self.walls)
        if reason is not None:
            protocol.send_packet(self.control, {"event": "failed", "reason": reason})
            return False
        try:
            self.model = loading.load(order["model_key"], order["dtype"])
            facts = loading.facts(self.model)
            self.rehearsal = rehearsal.Rehearsal(self.model)
            self.rehearsal.play()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".strip()
            protocol.send_packet(self.control, {"event": "failed", "reason": reason[:4000]})
            return False
        repo_id = ModelKey.parse(order["model_key"]).repo_id
        self.readable = [*jail.python(), snapshots.repo_folder(Path(os.environ["HF_HOME"]), repo_id)]
        gc.collect()
        # A collector walking the shared objects would copy every page it looks at into each runner.
        gc.freeze()
        hugepages.gather()
        protocol.send_packet(self.control, {"event": "ready", "walls": walls, **facts})
        return True

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
            self._fork(order["runner"], descriptors, [*self.readable, *map(Path, order["readable"])])
        elif order["op"] == "kill":
            for pid, number in self.runners.items():
                if number == order["runner"]:
                    _kill_group(pid)
        return True

    def _fork(self, number: int, descriptors: list[int], readable: list[Path]) -> None:
        assert_single_threaded()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self._become_runner(descriptors, readable)
        for descriptor in descriptors:
            os.close(descriptor)
        self.runners[pid] = number
        elapsed_ms = (time.monotonic() - started) * 1000
        event = {"event": "forked", "runner": number, "pid": pid, "fork_ms": elapsed_ms}
        protocol.send_packet(self.control, event)

    def _become_runner(self, descriptors: list[int], readable: list[Path]) -> NoReturn:
        # The keeper with its namespaces has its place here.
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
            os.setsid()
            self.control.close()
            from . import runner

            cell = runner.Cell(readable, self.walls)
            sock = socket.socket(fileno=descriptors[0])
            runner.serve(self.model, sock, descriptors[1], self.threads, self.rehearsal, cell)
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
            event = {"event": "exited", "runner": number, "status": os.waitstatus_to_exitcode(status)}
            protocol.send_packet(self.control, event | {"peak_bytes": used.ru_maxrss * 1024})

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


def assert_single_threaded() -> None:
    """A second thread makes forked children hang (OpenMP, locks held by nobody)."""
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise RuntimeError(f"The zygote has {len(threads)} threads and must have one.")


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def main() -> None:
    """Entry point; the one argument is the control socket's descriptor."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Zygote(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
