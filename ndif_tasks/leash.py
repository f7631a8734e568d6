"""A leash: runs one command so that neither it nor anything it started can outlive its owner.

Usage: ``python -I -S leash.py [--lifeline FD] [--grace SECONDS] [--spare] -- COMMAND...``. The lifeline is the read end
of a pipe whose other end only the owner has. It becomes readable for every leash at once when the owner says so, or
when it dies, however it dies: then the leash clears everything away. Nobody reads from it, or the others would miss it.
Orphans of the command come to the leash (it is a subreaper), so none escapes by a second fork. SIGTERM and SIGINT go
on to the command; SIGUSR1 kills all of it at once. Standard library only, and one thread: a parent-death signal follows
the thread that forked.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

LIFELINE_VARIABLE = "NDIF_LIFELINE_FD"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_LIMIT_S = 5.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT)
_HANDLED = (*_FORWARDED, signal.SIGUSR1, signal.SIGCHLD)


class Leash:
    """The command, its descendants, and the pipe they hang on."""

    def __init__(self, argv: Sequence[str], lifeline: int | None, grace_s: float, spare: bool) -> None:
        self.argv = list(argv)
        self.lifeline = lifeline
        self.grace_s = grace_s
        self.spare = spare
        self.child = 0
        self.status: int | None = None
        self.kill_now = False

    def run(self) -> int:
        """Run the command to its end; return the exit status to leave with."""
        wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        # Held back until the command exists, so that no signal meant for it is lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        for number in _HANDLED:
            signal.signal(number, self._on_signal)
        self._start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        self._wait(wakeup)
        if self.status is None:
            os.kill(self.child, signal.SIGKILL)
        self._sweep()
        return 128 + signal.SIGKILL if self.status is None else self.status

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            self.kill_now = True
        elif number in _FORWARDED and self.child and self.status is None:
            os.kill(self.child, number)

    def _start(self) -> None:
        owner = os.getpid()
        self.child = os.fork()
        if self.child == 0:
            self._become_command(owner)

    def _become_command(self, owner: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_HANDLED, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != owner:
                os._exit(128 + signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            os.environ.pop(LIFELINE_VARIABLE, None)
            if self.lifeline is not None:
                os.environ[LIFELINE_VARIABLE] = str(self.lifeline)
            os.execvp(self.argv[0], self.argv)
        except OSError as error:
            print(f"{self.argv[0]} cannot be started: {error.strerror}.", file=sys.stderr, flush=True)
        finally:
            os._exit(127)

    def _wait(self, wakeup: int) -> None:
        """Return when the command has ended or must be killed."""
        poller = select.poll()
        poller.register(wakeup, select.POLLIN)
        if self.lifeline is not None:
            poller.register(self.lifeline, select.POLLIN)
        deadline: float | None = None
        while not self.kill_now:
            self._reap()
            remaining = None if deadline is None else deadline - time.monotonic()
            if self.status is not None or (remaining is not None and remaining <= 0):
                return
            for fd, _ in poller.poll(None if remaining is None else remaining * 1000):
                if fd == wakeup:
                    _drain(wakeup)
                elif deadline is None:
                    poller.unregister(fd)
                    deadline = time.monotonic() + self.grace_s
                    os.kill(self.child, signal.SIGTERM)

    def _reap(self) -> bool:
        """Bury dead children; return whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code

    def _sweep(self) -> None:
        """Kill whatever the command left; killing one hands its own children to this process, so repeat."""
        give_up = time.monotonic() + _SWEEP_LIMIT_S
        while self._reap() and time.monotonic() < give_up:
            doomed = [pid for pid in _children(os.getpid()) if not (self.spare and _has_own_lifeline(pid))]
            if not doomed:
                return
            for pid in doomed:
                try:
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue
            time.sleep(0.01)


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            continue
    except BlockingIOError:
        return


def _children(owner: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == owner:
            found.append(int(name))
    return found


def _has_own_lifeline(pid: int) -> bool:
    """Whether a process is another leash that hangs on a lifeline, and so needs nobody to end it."""
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().split("\0")[1:5] == ["-I", "-S", __file__, "--lifeline"]
    except OSError:
        return False


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl refused")


def main() -> int:
    """Parse the command line and hold the leash."""
    parser = argparse.ArgumentParser(description="Run a command that cannot outlive its owner.")
    parser.add_argument("--lifeline", type=int, default=None, help="read end of the owner's pipe")
    parser.add_argument("--grace", type=float, default=3.0, help="seconds between TERM and KILL when the owner is gone")
    parser.add_argument("--spare", action="store_true", help="let leashes started below go on with their own lifeline")
    parser.add_argument("argv", nargs="+", help="the command, after --")
    given = parser.parse_args()
    if given.lifeline is not None:
        os.set_inheritable(given.lifeline, True)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return Leash(given.argv, given.lifeline, given.grace, given.spare).run()


if __name__ == "__main__":
    sys.exit(main())
