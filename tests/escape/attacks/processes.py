"""Attacks on other processes: looking into one, changing one, sending it signals, tracing it."""

from __future__ import annotations

from .calls import Target, call, demand, piece, system_call

# Looking into another


def read_anothers_environment(target: Target) -> object:
    with open(f"/proc/{target['pid']}/environ", "rb") as file:
        return demand(target["word"].encode() in file.read(), "another environment")


def read_anothers_memory(target: Target) -> object:
    import os

    memory = os.open(f"/proc/{target['pid']}/mem", os.O_RDONLY)
    try:
        return demand(
            os.pread(memory, len(target["word"]), target["address"]) == target["word"].encode(), "other bytes"
        )
    finally:
        os.close(memory)


def read_anothers_memory_by_call(target: Target) -> object:
    import ctypes

    there = ctypes.create_string_buffer(len(target["word"]))
    here, far = piece(ctypes.addressof(there), len(there)), piece(target["address"], len(there))
    call("process_vm_readv", target["pid"], here, 1, far, 1, 0)
    return demand(there.raw == target["word"].encode(), "other bytes")


def list_anothers_descriptors(target: Target) -> object:
    import os

    return os.readlink(f"/proc/{target['pid']}/fd/{target['descriptor']}")


def open_anothers_descriptor(target: Target) -> object:
    with open(f"/proc/{target['pid']}/fd/{target['descriptor']}") as file:
        return demand(file.read() == target["word"], "another file")


def take_anothers_descriptor(target: Target) -> None:
    import os

    process = os.pidfd_open(target["pid"])
    taken = system_call(438, process, target["descriptor"], 0)  # pidfd_getfd
    os.close(process)
    os.close(taken)


def read_through_anothers_root(target: Target) -> object:
    with open(f"/proc/{target['pid']}/root{target['secret']}") as file:
        return demand(file.read() == target["word"], "another file")


def compare_with_another(target: Target) -> object:
    import os

    return system_call(312, os.getpid(), target["pid"], 1, 0, 0)  # kcmp, of their memory


def hold_another(target: Target) -> None:
    import os

    os.close(os.pidfd_open(target["pid"]))


def learn_who_is_at_the_other_end(target: Target) -> object:
    """By the same call newer kernels give a handle of that process."""
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        return ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)


def learn_of_a_process(target: Target) -> object:
    import os

    return os.getpgid(target["pid"])


def read_its_parents_memory(target: Target) -> object:
    import os

    with open(f"/proc/{os.getppid()}/mem", "rb") as file:
        return file.fileno()


# Changing another


def write_anothers_memory(target: Target) -> object:
    import os

    memory = os.open(f"/proc/{target['pid']}/mem", os.O_WRONLY)
    try:
        return os.pwrite(memory, b"x", target["address"])
    finally:
        os.close(memory)


def write_anothers_memory_by_call(target: Target) -> object:
    import ctypes

    mine = ctypes.create_string_buffer(b"x", 1)
    here, far = piece(ctypes.addressof(mine), 1), piece(target["address"], 1)
    return call("process_vm_writev", target["pid"], here, 1, far, 1, 0)


def pin_another(target: Target) -> None:
    import os

    os.sched_setaffinity(target["pid"], {min(os.sched_getaffinity(target["pid"]))})


def slow_another(target: Target) -> None:
    import os

    os.setpriority(os.PRIO_PROCESS, target["pid"], 19)


def limit_another(target: Target) -> object:
    import resource

    return resource.prlimit(target["pid"], resource.RLIMIT_CORE, (0, 0))


def doom_another(target: Target) -> object:
    """Make it the first that an out-of-memory killer takes."""
    with open(f"/proc/{target['pid']}/oom_score_adj", "w") as file:
        return file.write("1000")


def trace_another(target: Target) -> object:
    return call("ptrace", 0x4206, target["pid"], 0, 0)  # PTRACE_SEIZE, which does not stop it


# Signals: SIGCONT, which nobody minds, unless the victim is the test's own


def signal_another(target: Target) -> None:
    import os
    import signal

    os.kill(target["pid"], signal.SIGCONT)


def signal_anothers_thread(target: Target) -> object:
    import signal

    return system_call(234, target["pid"], target["pid"], int(signal.SIGCONT))  # tgkill


def signal_another_by_descriptor(target: Target) -> None:
    import os
    import signal

    process = os.pidfd_open(target["pid"])
    signal.pidfd_send_signal(process, signal.SIGCONT)
    os.close(process)


def queue_a_signal_to_another(target: Target) -> object:
    import ctypes
    import signal
    import struct

    facts = ctypes.create_string_buffer(struct.pack("iii", signal.SIGCONT, 0, -1), 128)  # code -1: from sigqueue
    return system_call(129, target["pid"], int(signal.SIGCONT), facts)  # rt_sigqueueinfo


def have_the_kernel_signal_another(target: Target) -> object:
    """By owning a socket in its name: the kernel sends the signal, and no call that a filter sees names a process."""
    import fcntl
    import os
    import socket
    import time

    one, other = socket.socketpair()
    with one, other:
        fcntl.fcntl(one, fcntl.F_SETOWN, target["pid"])
        fcntl.fcntl(one, fcntl.F_SETFL, os.O_ASYNC)
        other.send(b"x")
    until = time.monotonic() + target["patience_s"]
    while time.monotonic() < until:
        try:
            with open(target["signalled"]):
                return True
        except FileNotFoundError:
            time.sleep(0.01)
    raise TimeoutError("no signal came there")


def signal_everybody(target: Target) -> None:
    import os

    os.kill(-1, 0)  # asks whether it might, and sends none


def signal_its_parent(target: Target) -> None:
    import os
    import signal

    os.kill(os.getppid(), signal.SIGCONT)


def end_another(target: Target) -> None:
    import os
    import signal

    os.kill(target["pid"], signal.SIGKILL)


ATTACKS = (
    *(read_anothers_environment, read_anothers_memory, read_anothers_memory_by_call, list_anothers_descriptors),
    *(open_anothers_descriptor, take_anothers_descriptor, read_through_anothers_root, compare_with_another),
    *(hold_another, learn_of_a_process, learn_who_is_at_the_other_end, read_its_parents_memory, write_anothers_memory),
    *(write_anothers_memory_by_call, pin_another, slow_another, limit_another, doom_another, trace_another),
    *(signal_another, signal_anothers_thread, signal_another_by_descriptor, queue_a_signal_to_another),
    *(have_the_kernel_signal_another, signal_everybody, signal_its_parent, end_another),
)
