"""Processes of the farm: started as argument lists on a leash, watched, and stopped TERM then KILL.

Knows nothing of Celery, Flask or torch. Secrets go into a child's environment or a file, never into its arguments.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ndif_models.session import process_start_time

from . import leash

_LEASH = Path(leash.__file__)
_KILL_LIMIT_S = 8.0


class Process:
    """A command on its leash. ``pid`` and ``start_time`` are the leash's and name it for good."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid
        self.start_time = process_start_time(popen.pid)

    def poll(self) -> int | None:
        """The exit status (128 + n for signal n), or None while it runs."""
        status = self._popen.poll()
        return 128 - status if status is not None and status < 0 else status

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within the time."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def terminate(self) -> None:
        """Ask the command to end."""
        self._popen.send_signal(signal.SIGTERM)

    def stop(self, grace_s: float = 5.0) -> int | None:
        """TERM, and after the grace KILL the command with all it started; return the exit status."""
        self.terminate()
        if not self.wait(grace_s):
            self.kill()
        return self.poll()

    def kill(self) -> None:
        """KILL the command with all it started, now."""
        self._popen.send_signal(signal.SIGUSR1)
        if not self.wait(_KILL_LIMIT_S):
            self._popen.kill()
            self._popen.wait()


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log_path: Path,
    lifeline_fd: int | None,
    cwd: Path | None = None,
    grace_s: float = 3.0,
    spare_leashes: bool = False,
) -> Process:
    """Start ``argv`` on a leash of its own.

    Args:
        env: the whole environment of the command.
        log_path: where its stdout and stderr are appended.
        lifeline_fd: read end of the pipe it must not outlive; None where only its own end counts.
        cwd: its working directory.
        grace_s: how long it may take to end once the lifeline has.
        spare_leashes: whether what it started on leashes of their own, on the lifeline, goes on without it.
    """
    lifeline = [] if lifeline_fd is None else ["--lifeline", str(lifeline_fd)]
    options = [*lifeline, "--grace", str(grace_s), *(["--spare"] if spare_leashes else [])]
    command = [sys.executable, "-I", "-S", str(_LEASH), *options, "--", *argv]
    with open(os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        popen = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=() if lifeline_fd is None else (lifeline_fd,),
        )
    return Process(popen)


def lifeline_from_environment() -> int | None:
    """The lifeline this process hangs on, to hang its own children on too."""
    text = os.environ.get(leash.LIFELINE_VARIABLE, "")
    return int(text) if text else None


def signal_recorded(pid: int, start_time: int, number: int) -> bool:
    """Signal a process known only from a record; False when that process is gone, whoever has its pid now."""
    try:
        handle = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError):
        return False
    try:
        # Read after the handle is open: the handle then cannot mean a later process of the same pid.
        if process_start_time(pid) != start_time:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True
