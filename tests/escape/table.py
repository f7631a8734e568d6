"""Which wall stops which attack, which mark each leaves where nothing stops it, and which only root can make."""

from __future__ import annotations

import builtins
import os

import pytest

#: The attacks that a wall stops by itself.
STOPPED_BY = {
    "user": (
        *("read_a_secret_file", "list_a_folder", "learn_of_a_file", "write_a_file", "overwrite_a_file"),
        *("truncate_a_file", "write_into_the_packages", "open_weights_for_writing"),
        *("open_weights_again_for_writing", "remove_a_file", "rename_a_file", "link_a_file", "plant_a_link"),
        *("make_a_folder", "make_a_device", "take_a_file", "open_up_a_file", "redate_a_file"),
        *("read_anothers_environment", "read_anothers_memory", "read_anothers_memory_by_call"),
        *("list_anothers_descriptors", "write_anothers_memory", "write_anothers_memory_by_call"),
        *("pin_another", "slow_another", "limit_another", "doom_another", "trace_another", "end_another"),
        *("become_another_user", "be_nicer_to_itself", "change_the_root", "mount_over_a_folder"),
        *("set_the_hostname", "set_the_clock"),
    ),
    "namespaces": (
        *("read_passwd", "read_a_secret_file", "read_a_file_by_its_handle", "list_the_root", "list_a_folder"),
        *("learn_of_a_file", "watch_everybodys_files", "write_a_file", "overwrite_a_file", "truncate_a_file"),
        *("write_into_the_packages", "open_weights_for_writing", "open_weights_again_for_writing"),
        *("overwrite_a_file_in_tmp", "overwrite_shared_memory", "write_into_anothers_pipe", "remove_a_file"),
        *("rename_a_file", "link_a_file", "plant_a_link", "make_a_folder", "make_a_device", "take_a_file"),
        *("open_up_a_file", "redate_a_file", "label_a_file", "read_anothers_environment"),
        *("read_anothers_memory", "read_anothers_memory_by_call", "list_anothers_descriptors"),
        *("open_anothers_descriptor", "take_anothers_descriptor", "read_through_anothers_root"),
        *("compare_with_another", "hold_another", "learn_of_a_process", "read_its_parents_memory"),
        *("write_anothers_memory", "write_anothers_memory_by_call", "pin_another", "slow_another"),
        *("limit_another", "doom_another", "trace_another", "signal_another", "signal_anothers_thread"),
        *("signal_another_by_descriptor", "queue_a_signal_to_another", "have_the_kernel_signal_another"),
        *("signal_everybody", "end_another", "leave_a_process_behind", "spawn_a_program", "run_a_shell"),
        *("become_a_program", "become_an_anonymous_program", "become_another_user", "connect_over_tcp"),
        *("send_a_datagram", "connect_to_a_unix_socket", "connect_to_an_abstract_socket"),
        *("join_anothers_namespace", "mount_over_a_folder", "set_the_clock", "open_a_kernel_setting"),
        *("learn_the_hosts_name", "read_an_anonymous_segment"),
    ),
    "privileges": (
        *("read_a_file_by_its_handle", "watch_everybodys_files", "make_a_device", "take_a_file", "change_the_root"),
        *("be_nicer_to_itself", "take_the_processor", "become_another_user", "see_every_packet", "forge_packets"),
        *("enter_a_new_mount_namespace", "join_anothers_namespace", "mount_over_a_folder", "make_a_filesystem"),
        *("copy_the_mounts", "set_the_hostname", "set_the_clock"),
    ),
    "landlock": (
        *("read_passwd", "read_a_secret_file", "read_a_file_by_its_handle", "list_the_root", "list_a_folder"),
        *("write_a_file", "overwrite_a_file", "truncate_a_file", "write_into_the_packages", "open_weights_for_writing"),
        *("open_weights_again_for_writing", "overwrite_a_file_in_tmp", "overwrite_shared_memory", "disk_bomb"),
        *("write_into_anothers_pipe", "remove_a_file", "rename_a_file", "link_a_file", "plant_a_link"),
        *("make_a_folder", "make_a_device", "read_anothers_environment", "read_anothers_memory"),
        *("read_anothers_memory_by_call", "list_anothers_descriptors", "open_anothers_descriptor"),
        *("take_anothers_descriptor", "read_through_anothers_root", "compare_with_another", "read_its_parents_memory"),
        *("write_anothers_memory", "write_anothers_memory_by_call", "doom_another", "trace_another"),
        *("signal_another", "signal_anothers_thread", "signal_another_by_descriptor", "queue_a_signal_to_another"),
        *("have_the_kernel_signal_another", "signal_its_parent", "end_another", "leave_a_process_behind"),
        *("spawn_a_program", "run_a_shell", "become_a_program", "become_an_anonymous_program", "connect_over_tcp"),
        *("listen_on_a_port", "connect_to_an_abstract_socket", "join_anothers_namespace", "mount_over_a_folder"),
        *("open_a_kernel_setting",),
    ),
    "seccomp": (
        *("read_a_file_by_its_handle", "watch_files", "watch_everybodys_files", "truncate_a_file", "remove_a_file"),
        *("rename_a_file", "link_a_file", "plant_a_link", "make_a_folder", "make_a_device", "take_a_file"),
        *("open_up_a_file", "redate_a_file", "label_a_file", "read_anothers_memory_by_call"),
        *("take_anothers_descriptor", "compare_with_another", "hold_another", "write_anothers_memory_by_call"),
        *("pin_another", "slow_another", "limit_another", "trace_another", "signal_another", "signal_anothers_thread"),
        *("signal_another_by_descriptor", "queue_a_signal_to_another", "signal_everybody", "signal_its_parent"),
        *("end_another", "fork", "fork_by_system_call", "clone_into_a_user_namespace", "leave_a_process_behind"),
        *("spawn_a_program", "run_a_shell", "become_a_program", "become_an_anonymous_program", "fork_bomb"),
        *("make_an_anonymous_file", "hide_memory", "fork_from_native_code", "open_a_socket_from_native_code"),
        *("open_a_socket_by_the_32_bit_gate", "become_another_user", "be_nicer_to_itself", "take_the_processor"),
        *("outlive_its_parent", "leave_its_group", "unrandomise_itself", "connect_over_tcp", "listen_on_a_port"),
        *("send_a_datagram", "connect_to_a_unix_socket", "connect_to_an_abstract_socket", "pass_a_descriptor"),
        *("send_from_a_pair_to_somebody_else", "connect_a_pair_to_somebody_else", "ask_the_kernel_over_netlink"),
        *("see_every_packet", "forge_packets", "enter_a_new_user_namespace", "enter_a_new_mount_namespace"),
        *("join_anothers_namespace", "change_the_root", "mount_over_a_folder", "make_a_filesystem"),
        *("copy_the_mounts", "set_the_hostname", "set_the_clock", "read_the_kernel_log", "look_into_a_keyring"),
        *("leave_a_key", "read_an_anonymous_segment", "set_up_io_uring", "handle_page_faults", "make_a_bpf_map"),
        *("count_with_perf", "have_the_kernel_signal_another", "learn_who_is_at_the_other_end"),
        *("have_descriptors_of_its_own", "send_out_of_band"),
    ),
    "limits": ("memory_bomb", "thread_bomb", "descriptor_bomb"),
}

#: What no wall has to stop: a runner has nothing of its zygote's but memory, and its replica reads no more than a job
#: may say.
PROCESS = ("use_what_was_inherited", "output_flood", "endless_line")

#: No attacks from a user whom the kernel stops anyway, or stops unless one of its settings says otherwise.
NEEDS_ROOT = {
    *STOPPED_BY["privileges"],
    *("read_its_parents_memory", "open_a_kernel_setting", "read_the_kernel_log", "handle_page_faults"),
    *("make_a_bpf_map", "count_with_perf"),
}

#: What of a victim changes where nothing stops an attack.
_CHANGED_BY = {
    "secret": (
        *("overwrite_a_file", "truncate_a_file", "link_a_file", "take_a_file", "open_up_a_file", "redate_a_file"),
        *("label_a_file",),
    ),
    "folder": (
        *("write_a_file", "remove_a_file", "rename_a_file", "link_a_file", "plant_a_link", "make_a_folder"),
        *("make_a_device", "leave_a_process_behind", "disk_bomb"),
    ),
    "doomed": ("remove_a_file", "rename_a_file"),
    "package": ("write_into_the_packages",),
    "tmp": ("overwrite_a_file_in_tmp",),
    "shm": ("overwrite_shared_memory",),
    "fifo": ("write_into_anothers_pipe",),
    "inherited": ("use_what_was_inherited", "lie"),
    "memory": ("write_anothers_memory", "write_anothers_memory_by_call"),
    "affinity": ("pin_another",),
    "nice": ("slow_another",),
    "limits": ("limit_another",),
    "doom": ("doom_another",),
    "signal": (
        *("signal_another", "signal_anothers_thread", "signal_another_by_descriptor", "queue_a_signal_to_another"),
        *("have_the_kernel_signal_another",),
    ),
    "process": ("end_another",),
    "tcp": ("connect_over_tcp",),
    "udp": ("send_a_datagram",),
    "unix": ("connect_to_a_unix_socket",),
    "abstract": ("connect_to_an_abstract_socket",),
    "datagrams": ("send_from_a_pair_to_somebody_else", "connect_a_pair_to_somebody_else"),
}


def marks(attack: str) -> set[str]:
    """What an attack changes of its victims."""
    return {mark for mark, attacks in _CHANGED_BY.items() if attack in attacks}


def skip_unless_root(attack: str) -> None:
    """An attack that nobody but root can make is tried by root alone."""
    if attack in NEEDS_ROOT and os.geteuid() != 0:
        pytest.skip("the kernel stops this attack without any wall, when not made by root")


def is_refusal(text: str) -> bool:
    """Whether an error, as the last line of a traceback tells it, is the system's "no"."""
    line = [line for line in text.strip().splitlines() if not line.startswith("hint: ")][-1]
    kind = getattr(builtins, line.partition(":")[0], None)
    refusal = isinstance(kind, type) and issubclass(kind, OSError | MemoryError)
    return refusal or line == "RuntimeError: can't start new thread"
