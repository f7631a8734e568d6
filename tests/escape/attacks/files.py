"""Attacks on files: reading, finding, writing and changing what is somebody else's."""

from __future__ import annotations

from .calls import Target, call, demand, system_call

# Reading


def read_passwd(target: Target) -> object:
    with open("/etc/passwd") as file:
        return file.read(1)


def read_a_secret_file(target: Target) -> object:
    with open(target["secret"], "rb") as file:
        return demand(file.read(64), "nothing in it")


def read_a_file_by_its_handle(target: Target) -> object:
    """A handle names a file without a path: who may use one is stopped by no folder on the way."""
    import ctypes
    import os

    handle = ctypes.create_string_buffer(bytes.fromhex(target["handle"]))
    place = os.open(target["folder"], os.O_RDONLY)
    with open(system_call(304, place, handle, os.O_RDONLY)) as file:  # open_by_handle_at
        os.close(place)
        return demand(file.read() == target["word"], "another file")


def list_the_root(target: Target) -> object:
    import os

    return demand(set(target["root"]) <= set(os.listdir("/")), "a root of its own")


def list_a_folder(target: Target) -> object:
    import os

    return demand("secret" in os.listdir(target["folder"]), "another folder")


def learn_of_a_file(target: Target) -> object:
    import os

    return os.stat(target["secret"]).st_size


def watch_files(target: Target) -> None:
    import os

    os.close(call("inotify_init"))


def watch_everybodys_files(target: Target) -> None:
    import os

    os.close(call("fanotify_init", 0, os.O_RDONLY))


# Writing


def write_a_file(target: Target) -> object:
    with open(target["folder"] + "/written", "w") as file:
        return file.write("x")


def overwrite_a_file(target: Target) -> object:
    with open(target["secret"], "r+") as file:
        return file.write("x")


def truncate_a_file(target: Target) -> None:
    import os

    os.truncate(target["secret"], 0)


def write_into_the_packages(target: Target) -> object:
    with open(target["package"], "r+") as file:
        return file.write("x")


def open_weights_for_writing(target: Target) -> None:
    import os

    os.close(os.open(target["weights"], os.O_RDWR))


def open_weights_again_for_writing(target: Target) -> None:
    """By way of a descriptor that may only read."""
    import os

    reading = os.open(target["weights"], os.O_RDONLY)
    writing = os.open(f"/proc/self/fd/{reading}", os.O_RDWR)
    os.close(reading)
    os.close(writing)


def overwrite_a_file_in_tmp(target: Target) -> object:
    with open(target["tmp"], "r+") as file:
        return file.write("x")


def overwrite_shared_memory(target: Target) -> object:
    import os

    memory = call("shm_open", target["shm"].encode(), os.O_RDWR, 0)
    with open(memory, "w") as file:
        return file.write("x")


def write_into_anothers_pipe(target: Target) -> object:
    with open(target["fifo"], "w") as file:
        return file.write("x")


# Changing


def remove_a_file(target: Target) -> None:
    import os

    os.unlink(target["doomed"])


def rename_a_file(target: Target) -> None:
    import os

    os.rename(target["doomed"], target["folder"] + "/renamed")


def link_a_file(target: Target) -> None:
    import os

    os.link(target["secret"], target["folder"] + "/linked")


def plant_a_link(target: Target) -> None:
    import os

    os.symlink("/etc/passwd", target["folder"] + "/planted")


def make_a_folder(target: Target) -> None:
    import os

    os.mkdir(target["folder"] + "/made")


def make_a_device(target: Target) -> None:
    import os
    import stat

    os.mknod(target["folder"] + "/device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))


def take_a_file(target: Target) -> None:
    import os

    os.chown(target["secret"], os.geteuid() + 1, -1)


def open_up_a_file(target: Target) -> None:
    import os

    os.chmod(target["secret"], 0o666)


def redate_a_file(target: Target) -> None:
    import os

    os.utime(target["secret"], (0, 0))


def label_a_file(target: Target) -> None:
    import os

    os.setxattr(target["secret"], "user.escape", b"x")


ATTACKS = (
    *(read_passwd, read_a_secret_file, read_a_file_by_its_handle, list_the_root, list_a_folder, learn_of_a_file),
    *(watch_files, watch_everybodys_files, write_a_file, overwrite_a_file, truncate_a_file, write_into_the_packages),
    *(open_weights_for_writing, open_weights_again_for_writing, overwrite_a_file_in_tmp, overwrite_shared_memory),
    *(write_into_anothers_pipe, remove_a_file, rename_a_file, link_a_file, plant_a_link, make_a_folder),
    *(make_a_device, take_a_file, open_up_a_file, redate_a_file, label_a_file),
)
