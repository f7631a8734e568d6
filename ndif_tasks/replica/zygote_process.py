"""A replica's zygote, seen from outside: start it, ask it for runners, have one killed, hear what became of it.

Torch-free. One reader thread takes the zygote's events; everything else may be called from any thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ndif_models import snapshots
from ndif_models.errors import LoadFailed, Unavailable
from ndif_models.keys import ModelKey
from ndif_models.settings import Settings
from ndif_tasks.sandbox import jail, protocol

from .tray import Tray

if TYPE_CHECKING:
    from .holder_process import HolderProcess

#: What is run as a zygote.
ZYGOTE = ("-m", "ndif_tasks.sandbox.zygote")
#: What a zygote may inherit; everything in its environment is readable by every job.
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "LD_LIBRARY_PATH")


class Usage(NamedTuple):
    """What a runner has used: the most memory, resident, shared weights included, and processor time; 0: unknown."""

    peak_bytes: int
    cpu_s: float


UNKNOWN = Usage(0, 0.0)


@dataclass
class Runner:
    """One forked runner: its socket, its output, and its end."""

    number: int
    sock: socket.socket
    output: int
    #: What its ``/tmp`` holds.
    scratch_bytes: int
    exited: int = field(default_factory=lambda: os.eventfd(0, os.EFD_CLOEXEC))
    pid: int = 0
    status: int | None = None
    _usage: Usage = field(default_factory=lambda: UNKNOWN)
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ended(self, status: int, usage: Usage) -> None:
        """Its end was told."""
        with self._lock:
            self.status, self._usage = status, usage
            if self._closed:
                os.close(self.exited)
            else:
                os.eventfd_write(self.exited, 1)

    def wait(self, wait_s: float) -> int | None:
        """Its exit status (negative: the signal that ended it), or None after ``wait_s``."""
        select.select([self.exited], [], [], wait_s)
        return self.status

    def usage(self) -> Usage:
        """What it has used so far."""
        try:
            with open(f"/proc/{self.pid}/status") as file:
                lines = [line for line in file if line.startswith("VmHWM:")]
            return Usage(int(lines[0].split()[1]) * 1024, time.clock_gettime(_clock_of(self.pid)))
        except (OSError, IndexError, ValueError):
            self.wait(1.0)  # it has ended, and its zygote is about to say so
            return self._usage

    def close(self) -> None:
        """Let go of its descriptors."""
        self.sock.close()
        os.close(self.output)
        with self._lock:
            self._closed = True
            if self.status is not None:
                os.close(self.exited)


class ZygoteProcess:
    """A running zygote."""

    def __init__(
        self,
        settings: Settings,
        model_key: str,
        dtype: str | None,
        threads: int,
        holder: HolderProcess | None = None,
    ) -> None:
        """``holder``: has loaded the weights, where they are on a GPU."""
        self.tray = Tray(settings)
        self.facts: dict[str, Any] = {}
        self.fork_ms: list[float] = []
        self._runners: dict[int, Runner] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._outcome: str | None = None
        self._loaded = threading.Event()
        self.gone = threading.Event()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Without the working folder on its path (-P), all that is on it is Python's, and may be read by every job.
        argv = [sys.executable, "-P", *ZYGOTE, str(theirs.fileno())]
        self.process = subprocess.Popen(
            argv,
            env=environment(settings),
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        order: dict[str, Any] = {
            "model_key": model_key,
            "dtype": dtype,
            "threads": threads,
            "walls": jail.required(settings),
            "readable": [str(repo_folder(settings, model_key)), str(self.tray.path)],
            "gpu": None,
        }
        if holder is not None:
            order |= {"gpu": holder.gpu, "fingerprint": holder.facts["fingerprint"]}
        protocol.send_packet(self._control, order, holder.descriptors if holder else ())
        threading.Thread(target=self._listen, name="zygote-events", daemon=True).start()

    def loaded(self, wait_s: float) -> bool:
        """Whether the model is ready, after waiting at most ``wait_s``.

        Raises:
            LoadFailed: it could not be loaded; the sentence says why.
        """
        if not self._loaded.wait(wait_s):
            return False
        if self._outcome is not None:
            raise LoadFailed(self._outcome)
        return True

    def fork(self, scratch_bytes: int) -> Runner:
        """Ask for a runner, with so much room in its ``/tmp``; it may be written to at once.

        Raises:
            Unavailable: the zygote is gone.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        with self._lock:
            self._count += 1
            runner = self._runners[self._count] = Runner(self._count, ours, read, scratch_bytes)
        try:
            with self._lock:
                order = {"op": "fork", "runner": runner.number, "scratch_bytes": scratch_bytes}
                protocol.send_packet(self._control, order, (theirs.fileno(), write))
            return runner
        except OSError:
            self._ended(runner, -int(signal.SIGKILL), UNKNOWN)
            runner.close()
            raise Unavailable("The process holding the model is gone.") from None
        finally:
            theirs.close()
            os.close(write)

    def kill(self, runner: Runner) -> None:
        """Kill a runner and its process group; its end is told through ``runner.exited``."""
        try:
            protocol.send_packet(self._control, {"op": "kill", "runner": runner.number})
        except OSError:
            return  # the zygote is gone, and its runners with it

    def stop(self) -> None:
        """End the zygote and all its runners."""
        end(self.process, self._control)
        self.tray.remove()

    def _listen(self) -> None:
        # A model's own code lives where these events come from: whatever is no event ends the zygote's part.
        with contextlib.suppress(Exception):
            while (packet := protocol.receive_packet(self._control)) is not None:
                self._hear(*packet)
        self._outcome = self._outcome or "the process loading the model ended by itself (see the replica's log)"
        if self._loaded.is_set():
            self._outcome = "the process holding the model ended by itself"
        self._loaded.set()
        self.gone.set()
        for runner in list(self._runners.values()):
            self._ended(runner, -int(signal.SIGKILL), UNKNOWN)

    def _hear(self, event: dict[str, Any], handles: list[int]) -> None:
        kind = event.pop("event")
        if kind == "ready":
            self.facts = event
            self._loaded.set()
        elif kind == "failed":
            self._outcome = event["reason"]
        elif kind == "forked":
            self._runners[event["runner"]].pid = _pid_of(handles[0])
            self.fork_ms = [*self.fork_ms[-99:], event["fork_ms"]]
        elif kind == "exited":
            usage = Usage(event["peak_bytes"], event["cpu_s"])
            self._ended(self._runners[event["runner"]], event["status"], usage)
        for handle in handles:
            os.close(handle)

    def _ended(self, runner: Runner, status: int, usage: Usage) -> None:
        self._runners.pop(runner.number, None)
        runner.ended(status, usage)


def repo_folder(settings: Settings, model_key: str) -> Path:
    """Where this machine has a model's files."""
    return snapshots.repo_folder(settings.hf_home, ModelKey.parse(model_key).repo_id)


def end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """Hang up on a process that ends by that, and see that it does."""
    with contextlib.suppress(OSError):  # it, or an earlier end, has hung up already
        control.shutdown(socket.SHUT_RDWR)
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    control.close()


def _clock_of(pid: int) -> int:
    """The clock of the processor time of a process and all its threads, which counts in nanoseconds: as
    ``clock_getcpuclockid`` makes it, of which Python has none."""
    return ~pid << 3 | 2


def _pid_of(handle: int) -> int:
    """What this process's tree calls the process of a handle; 0 when it is over."""
    text = Path(f"/proc/self/fdinfo/{handle}").read_text()
    found = re.search(r"^Pid:\s+(-?\d+)$", text, re.MULTILINE)
    return max(0, int(found[1])) if found else 0


def environment(settings: Settings) -> dict[str, str]:
    """What a process that loads a model has for an environment."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {
        **kept,
        "HF_HOME": str(settings.hf_home),
        "HF_HUB_OFFLINE": "1",
        "HOME": "/nonexistent",
        "LOGNAME": "runner",
        "NNSIGHT_CONFIG": os.devnull,
        "PYTHONUNBUFFERED": "1",
        # One thread in the zygote; idle ones in runners must sleep, not spin.
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TOKIO_WORKER_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        # A model is loaded on the CPU even where there is a GPU: forks of what has used one cannot.
        "CUDA_VISIBLE_DEVICES": "",
    }
