"""Attacks on the kernel: namespaces and mounts, its settings, and the doors behind which most holes were found."""

from __future__ import annotations

from .calls import Target, call, demand, system_call

# Namespaces, and mounts


def enter_a_new_user_namespace(target: Target) -> object:
    return call("unshare", 0x10000000)


def enter_a_new_mount_namespace(target: Target) -> object:
    return call("unshare", 0x00020000)


def join_anothers_namespace(target: Target) -> None:
    import os

    place = os.open(f"/proc/{target['pid']}/ns/uts", os.O_RDONLY)
    call("setns", place, 0)
    os.close(place)


def change_the_root(target: Target) -> None:
    import os

    os.chroot("/")


def mount_over_a_folder(target: Target) -> object:
    call("mount", b"none", target["folder"].encode(), b"tmpfs", 0, None)
    return call("umount2", target["folder"].encode(), 2)  # MNT_DETACH


def make_a_filesystem(target: Target) -> None:
    """Attached nowhere, and gone with its last descriptor."""
    import os

    place = system_call(430, b"tmpfs", 0)  # fsopen
    system_call(431, place, 6, None, None, 0)  # fsconfig, to create it
    os.close(system_call(432, place, 0, 0))  # fsmount
    os.close(place)


def copy_the_mounts(target: Target) -> None:
    import os

    os.close(system_call(428, -100, target["folder"].encode(), 1))  # open_tree, to clone


# Settings of the machine


def set_the_hostname(target: Target) -> None:
    import socket

    socket.sethostname(socket.gethostname())


def set_the_clock(target: Target) -> object:
    return system_call(164, 0, 0)  # settimeofday, to what it is


def open_a_kernel_setting(target: Target) -> None:
    """Of the program that is given the memory of each that crashes."""
    import os

    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


def read_the_kernel_log(target: Target) -> object:
    return call("klogctl", 10, None, 0)  # only how long it is


def learn_the_hosts_name(target: Target) -> object:
    import os

    return demand(os.uname().nodename == target["host"], "another name")


# What the kernel keeps for processes


def look_into_a_keyring(target: Target) -> object:
    return system_call(250, 0, -3, 1)  # keyctl: the id of the session's keyring, made if there is none


def leave_a_key(target: Target) -> object:
    return system_call(248, b"user", b"escape", b"x", 1, -1)  # add_key, to the thread's own keyring


def read_an_anonymous_segment(target: Target) -> object:
    """System V shared memory, which has a number and no path."""
    import ctypes
    import os

    attach = ctypes.CDLL(None, use_errno=True).shmat
    attach.restype = ctypes.c_ssize_t
    place = attach(target["segment"], None, 0)
    if place == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return demand(ctypes.string_at(place) == target["word"].encode(), "another segment")


# Doors


def set_up_io_uring(target: Target) -> None:
    import ctypes
    import os

    os.close(system_call(425, 1, ctypes.create_string_buffer(120)))


def handle_page_faults(target: Target) -> None:
    import os

    os.close(system_call(323, 0))  # userfaultfd


def make_a_bpf_map(target: Target) -> None:
    import ctypes
    import os
    import struct

    array = ctypes.create_string_buffer(struct.pack("IIII", 2, 4, 4, 1), 120)  # one value of four bytes
    os.close(system_call(321, 0, array, len(array)))


def count_with_perf(target: Target) -> None:
    import ctypes
    import os
    import struct

    clock = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0), 128)
    os.close(system_call(298, clock, 0, -1, -1, 0))


ATTACKS = (
    *(enter_a_new_user_namespace, enter_a_new_mount_namespace, join_anothers_namespace, change_the_root),
    *(mount_over_a_folder, make_a_filesystem, copy_the_mounts, set_the_hostname, set_the_clock),
    *(open_a_kernel_setting, read_the_kernel_log, learn_the_hosts_name, look_into_a_keyring, leave_a_key),
    *(read_an_anonymous_segment, set_up_io_uring, handle_page_faults, make_a_bpf_map, count_with_perf),
)
