"""Attacks by ending, or by not ending: each leaves the one that waits for an answer without one, or with a lie."""

from __future__ import annotations

from .calls import Target, native

# Ending


def exit_at_once(target: Target) -> object:
    import os

    os._exit(3)


def crash(target: Target) -> object:
    import ctypes

    return ctypes.string_at(0)


def abort(target: Target) -> object:
    import os

    os.abort()


def run_no_instruction(target: Target) -> object:
    return native(b"\x0f\x0b")  # ud2


def kill_itself(target: Target) -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def lie(target: Target) -> object:
    """Write bytes of its own into every descriptor that its answer might go through, and be gone."""
    import os

    for descriptor in range(3, 64):
        try:
            os.write(descriptor, target["frame"].encode("latin-1"))
        except OSError:
            continue
    os._exit(0)


# Not ending, for at most ``seconds``; ``enough`` is a file that a test makes to be done with it


def loop_natively(target: Target) -> object:
    """No handler of a signal runs in between."""
    import itertools

    print("running")
    return sum(itertools.repeat(0, target["rounds"]))


def ignore_every_signal(target: Target) -> object:
    import signal

    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):  # not every number can be, nor in every thread
            continue
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return linger(target)


def stop_itself(target: Target) -> None:
    import os
    import signal

    print("running")
    os.kill(os.getpid(), signal.SIGSTOP)


def promise_and_linger(target: Target) -> object:
    """The beginning of an answer, and never its end."""
    import os

    print("running")
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\0\0\0\x1f{")
        except OSError:
            continue
    return _wait(target)


def hang_up_and_linger(target: Target) -> object:
    import os

    print("running")
    os.closerange(3, 64)
    return _wait(target)


def linger(target: Target) -> object:
    """Do nothing."""
    print("running")
    return _wait(target)


def _wait(target: Target) -> object:
    import os
    import time

    until = time.monotonic() + target["seconds"]
    while time.monotonic() < until and not os.path.exists(target["enough"]):
        time.sleep(0.01)
    return True


ENDINGS = (exit_at_once, crash, abort, run_no_instruction, kill_itself, lie)
ENDLESS = (loop_natively, ignore_every_signal, stop_itself, promise_and_linger, hang_up_and_linger, linger)
