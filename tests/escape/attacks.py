"""What a hostile block would try, each in a bounded, harmless form: aimed at loopback, and at what a test made for it.

An attack returns when it has succeeded and raises when it has not. ``target`` is what the test made. Standard library
only, and every import inside, so that one function can be sent as part of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Attack = Callable[[dict[str, Any]], object]


def call(name: str, *given: Any) -> int:
    """A function of the C library; raises what its errno says."""
    import ctypes
    import os

    answer = int(getattr(ctypes.CDLL(None, use_errno=True), name)(*given))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


# Files


def read_passwd(target: dict[str, Any]) -> object:
    with open("/etc/passwd") as file:
        return file.read(1)


def list_the_root(target: dict[str, Any]) -> object:
    import os

    return os.listdir("/")


def read_a_secret_file(target: dict[str, Any]) -> object:
    with open(target["secret"]) as file:
        return file.read()


def write_a_file(target: dict[str, Any]) -> object:
    with open(target["folder"] + "/written", "w") as file:
        return file.write("x")


def write_into_the_packages(target: dict[str, Any]) -> object:
    import sysconfig

    with open(sysconfig.get_path("purelib") + "/ndif_escape_test", "w") as file:
        file.write("x")
    import os

    os.unlink(file.name)
    return True


def remove_a_file(target: dict[str, Any]) -> object:
    import os

    return os.unlink(target["doomed"])


def link_a_file(target: dict[str, Any]) -> object:
    import os

    return os.link(target["secret"], target["folder"] + "/linked")


def make_a_device(target: dict[str, Any]) -> object:
    import os
    import stat

    return os.mknod(target["folder"] + "/device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))


def take_a_file(target: dict[str, Any]) -> object:
    import os

    return os.chown(target["secret"], 65534, 65534)


def write_shared_memory(target: dict[str, Any]) -> object:
    import os

    name = f"/dev/shm/ndif-escape-{os.getpid()}"
    with open(name, "w") as file:
        file.write("x")
    return os.unlink(name)


# Other processes


def read_anothers_environment(target: dict[str, Any]) -> object:
    with open(f"/proc/{target['pid']}/environ", "rb") as file:
        return file.read(1)


def read_anothers_memory(target: dict[str, Any]) -> object:
    with open(f"/proc/{target['pid']}/mem", "rb") as file:
        return file.fileno()


def list_anothers_descriptors(target: dict[str, Any]) -> object:
    import os

    return os.listdir(f"/proc/{target['pid']}/fd")


def signal_another(target: dict[str, Any]) -> object:
    import os
    import signal

    return os.kill(target["pid"], signal.SIGCONT)


def trace_another(target: dict[str, Any]) -> object:
    call("ptrace", 0x4206, target["pid"], 0, 0)  # PTRACE_SEIZE, which does not stop it
    return True


def read_anothers_memory_by_call(target: dict[str, Any]) -> object:
    import ctypes

    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

    with open(f"/proc/{target['pid']}/maps") as file:
        start = int(file.readline().partition("-")[0], 16)
    there = ctypes.create_string_buffer(1)
    here, far = Piece(ctypes.addressof(there), 1), Piece(start, 1)
    return call("process_vm_readv", target["pid"], ctypes.byref(here), 1, ctypes.byref(far), 1, 0)


def hold_another(target: dict[str, Any]) -> object:
    import os

    return os.close(os.pidfd_open(target["pid"]))


# New processes, and programs


def fork(target: dict[str, Any]) -> object:
    import os

    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


def spawn_a_program(target: dict[str, Any]) -> object:
    import os

    return os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


# The network


def connect_over_tcp(target: dict[str, Any]) -> object:
    import socket

    socket.create_connection(("127.0.0.1", target["port"]), 5).close()
    return True


def send_a_datagram(target: dict[str, Any]) -> object:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return sock.sendto(b"x", ("127.0.0.1", target["port"]))


def ask_the_kernel_over_netlink(target: dict[str, Any]) -> object:
    import socket

    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()
    return True


# The kernel


def enter_a_new_user_namespace(target: dict[str, Any]) -> object:
    return call("unshare", 0x10000000)


def change_the_root(target: dict[str, Any]) -> object:
    import os

    return os.chroot("/")


def set_the_hostname(target: dict[str, Any]) -> object:
    import socket

    return socket.sethostname(socket.gethostname())


def be_nicer_to_itself(target: dict[str, Any]) -> object:
    import os

    return os.setpriority(os.PRIO_PROCESS, 0, -1)


def look_into_a_keyring(target: dict[str, Any]) -> object:
    return call("syscall", 250, 0, -3, 1)  # keyctl(KEYCTL_GET_KEYRING_ID, session, create)


def make_an_anonymous_file(target: dict[str, Any]) -> object:
    import os

    return os.close(os.memfd_create("escape"))


def watch_files(target: dict[str, Any]) -> object:
    import os

    return os.close(call("inotify_init"))


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        *(read_passwd, list_the_root, read_a_secret_file, write_a_file, write_into_the_packages, remove_a_file),
        *(link_a_file, make_a_device, take_a_file, write_shared_memory, read_anothers_environment),
        *(read_anothers_memory, list_anothers_descriptors, signal_another, trace_another),
        *(read_anothers_memory_by_call, hold_another, fork, spawn_a_program, connect_over_tcp, send_a_datagram),
        *(ask_the_kernel_over_netlink, enter_a_new_user_namespace, change_the_root, set_the_hostname),
        *(be_nicer_to_itself, look_into_a_keyring, make_an_anonymous_file, watch_files),
    )
}
