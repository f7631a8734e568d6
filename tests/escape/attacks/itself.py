"""Attacks by which a process becomes more than it is: more processes, other programs, more rights, a longer life."""

from __future__ import annotations

from .calls import Target, call, demand, native, system_call

# New processes, and programs


def fork(target: Target) -> object:
    import os

    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


def fork_by_system_call(target: Target) -> object:
    import os

    child = system_call(57)
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


def clone_into_a_user_namespace(target: Target) -> object:
    import os
    import signal

    child = system_call(56, 0x10000000 | int(signal.SIGCHLD), 0, 0, 0, 0)  # CLONE_NEWUSER
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


def have_descriptors_of_its_own(target: Target) -> object:
    """A thread with a table of its own may open as many more as all may."""
    return system_call(436, 0xFFFFFFF0, 0xFFFFFFFF, 2)  # close_range, CLOSE_RANGE_UNSHARE


def send_out_of_band(target: Target) -> object:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        return ours.send(b"x", socket.MSG_OOB)


def leave_a_process_behind(target: Target) -> object:
    import os

    if os.fork() == 0:
        os.setsid()
        with open(target["folder"] + "/left", "w"):
            os._exit(0)
    return os.wait()


def spawn_a_program(target: Target) -> object:
    import os

    return os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def run_a_shell(target: Target) -> object:
    import subprocess

    return subprocess.run("exit 0", shell=True, check=True)


def become_a_program(target: Target) -> object:
    import os

    return os.execv("/bin/echo", ["echo", "succeeded"])


def become_an_anonymous_program(target: Target) -> object:
    import os

    with open("/bin/echo", "rb") as program, open(os.memfd_create("escape"), "wb", buffering=0) as file:
        file.write(program.read())
        return os.execve(file.fileno(), ["echo", "succeeded"], {})


def make_an_anonymous_file(target: Target) -> None:
    import os

    os.close(os.memfd_create("escape"))


def hide_memory(target: Target) -> None:
    import os

    os.close(system_call(447, 0))  # memfd_secret


# Native code, past Python and the C library


def fork_from_native_code(target: Target) -> object:
    import os

    # mov eax, 57; syscall; test eax, eax; jnz 1f; mov edi, 0; mov eax, 60; syscall; 1: ret
    child = native(bytes.fromhex("b8390000000f0585c0750cbf00000000b83c0000000f05c3"))
    return os.waitpid(child, 0)


def open_a_socket_from_native_code(target: Target) -> None:
    import os

    # mov edi, 2; mov esi, 1; xor edx, edx; mov eax, 41; syscall; ret
    os.close(native(bytes.fromhex("bf02000000be0100000031d2b8290000000f05c3")))


def open_a_socket_by_the_32_bit_gate(target: Target) -> None:
    """The other numbering of system calls, which a filter for one numbering alone would misread."""
    import os

    # push rbx; mov ebx, 2; mov ecx, 1; xor edx, edx; mov eax, 359; int 0x80; pop rbx; ret
    os.close(native(bytes.fromhex("53bb02000000b90100000031d2b867010000cd805bc3")))


# More rights, and a longer life


def become_another_user(target: Target) -> None:
    import os

    os.setuid(os.geteuid() + 1)


def be_nicer_to_itself(target: Target) -> None:
    import os

    os.setpriority(os.PRIO_PROCESS, 0, -1)


def take_the_processor(target: Target) -> None:
    import os

    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def outlive_its_parent(target: Target) -> object:
    return call("prctl", 1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG


def leave_its_group(target: Target) -> None:
    import os

    os.setsid()


def unrandomise_itself(target: Target) -> object:
    return call("personality", 0x0040000)  # ADDR_NO_RANDOMIZE


def use_what_was_inherited(target: Target) -> object:
    """A pipe of whoever made this process, beside those that are its own."""
    return demand([fd for fd in range(3, 64) if _takes(fd)], "nothing was inherited")


def _takes(descriptor: int) -> bool:
    import os
    import stat

    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and os.write(descriptor, b"x") == 1
    except OSError:
        return False


ATTACKS = (
    *(fork, fork_by_system_call, clone_into_a_user_namespace, leave_a_process_behind, spawn_a_program, run_a_shell),
    *(have_descriptors_of_its_own, send_out_of_band),
    *(become_a_program, become_an_anonymous_program, make_an_anonymous_file, hide_memory, fork_from_native_code),
    *(open_a_socket_from_native_code, open_a_socket_by_the_32_bit_gate, become_another_user, be_nicer_to_itself),
    *(take_the_processor, outlive_its_parent, leave_its_group),
    *(unrandomise_itself, use_what_was_inherited),
)
