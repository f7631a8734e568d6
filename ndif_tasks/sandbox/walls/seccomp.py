"""A seccomp filter: the system calls that Python, torch and nnsight need to compute, and no other.

No sockets, no new processes or programs, no signals but to itself, no mounts, namespaces, tracing, keyrings, io_uring,
bpf, perf or userfaultfd: all of them are absent from the list below, and fail with "Operation not permitted".
"""

from __future__ import annotations

import errno
import functools
import os
import socket
from typing import Any

from .. import device
from . import Refused

#: A thread that shares its descriptors: with a table of its own each could open as many as all may.
_CLONE_THREAD = 0x00010000 | 0x00000400
_CLOSE_RANGE_UNSHARE = 2
_MSG_OOB = 1
#: Of SOL_SOCKET: type, error, buffers, listening, protocol, domain; not who is at the other end, and no handle of it.
_SOCKET_OPTIONS = (3, 4, 7, 8, 30, 38, 39)
_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA = 15, 16, 0x53564D41
#: Terminal size and kind, bytes waiting, and the close-on-exec and non-blocking flags.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
#: Copies of a descriptor, its flags, locks of a process, the size of a pipe; not who is signalled about it.
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)

FILES = """
read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2 close open openat openat2 lseek
fstat stat lstat newfstatat statx fstatfs statfs access faccessat faccessat2 readlink readlinkat getdents64 getcwd
dup dup2 dup3 pipe pipe2 eventfd2 poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait
epoll_pwait2 fadvise64 flock fsync fdatasync ftruncate sendfile splice umask
"""
#: On files of its own, where a process has a folder in which it may make some.
SCRATCH = """
mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 symlink symlinkat truncate fallocate copy_file_range
chmod fchmod fchmodat utimensat chdir fchdir getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
"""
MEMORY = "brk mmap munmap mremap mprotect madvise mincore msync mlock munlock"
THREADS = """
futex futex_waitv set_robust_list get_robust_list rseq set_tid_address arch_prctl membarrier sched_yield
sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min getcpu exit exit_group
"""
SIGNALS = """
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack restart_syscall pause
alarm setitimer getitimer
"""
TIME = "nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times"
WHO = """
getpid getppid gettid getpgid getpgrp getsid getuid geteuid getgid getegid getgroups getresuid getresgid uname sysinfo
getrusage getrlimit capget getpriority wait4 waitid getrandom
"""
#: On the one socket the process was given; it can make none but pairs that lead nowhere.
SOCKET = "shutdown getsockname getpeername"

ALLOWED = tuple(" ".join((FILES, MEMORY, THREADS, SIGNALS, TIME, WHO, SOCKET)).split())


def library() -> Any:
    """The package that speaks to libseccomp. Its import looks for the library with programs and files of its own.

    Raises:
        Refused: it, or the library, is missing.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:
        raise Refused(f"{error}; install libseccomp") from None
    return pyseccomp


@functools.cache
def common_rules(scratch: bool, given: device.Device = device.NONE) -> Any:
    """A filter with every rule that is the same for every process, not loaded.

    Args:
        scratch: whether the process has a folder of its own.
        given: the device that it works on.

    Raises:
        Refused: libseccomp is missing.
    """
    seccomp = library()
    equal, masked = seccomp.EQ, seccomp.MASKED_EQ
    call = seccomp.SyscallFilter(defaction=seccomp.ERRNO(errno.EPERM))
    # Unless told so it kills the thread that calls the kernel in another numbering, with Python's lock in its hand.
    call.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.ERRNO(errno.EPERM))
    for name in (*ALLOWED, *(SCRATCH.split() if scratch else ()), *given.calls):
        call.add_rule(seccomp.ALLOW, name)
    # Its flags lie in memory, which a filter cannot read: glibc then falls back to clone, whose flags it can.
    call.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    call.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, masked, _CLONE_THREAD, _CLONE_THREAD))
    for option in (_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA):
        call.add_rule(seccomp.ALLOW, "prctl", seccomp.Arg(0, equal, option))
    for request in _IOCTLS:
        call.add_rule(seccomp.ALLOW, "ioctl", seccomp.Arg(1, equal, request))
    for mask, number in given.ioctls:
        call.add_rule(seccomp.ALLOW, "ioctl", seccomp.Arg(1, masked, mask, number))
    for command in _FCNTLS:
        call.add_rule(seccomp.ALLOW, "fcntl", seccomp.Arg(1, equal, command))
    # To and from the other end, and nowhere else.
    call.add_rule(seccomp.ALLOW, "sendto", seccomp.Arg(4, equal, 0), seccomp.Arg(3, masked, _MSG_OOB, 0))
    call.add_rule(seccomp.ALLOW, "recvfrom", seccomp.Arg(3, masked, _MSG_OOB, 0))
    for option in _SOCKET_OPTIONS:
        given_option = seccomp.Arg(1, equal, int(socket.SOL_SOCKET)), seccomp.Arg(2, equal, option)
        call.add_rule(seccomp.ALLOW, "getsockopt", *given_option)
    call.add_rule(seccomp.ALLOW, "close_range", seccomp.Arg(2, masked, _CLOSE_RANGE_UNSHARE, 0))
    call.add_rule(seccomp.ALLOW, "socketpair", seccomp.Arg(0, equal, int(socket.AF_UNIX)))
    call.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(0, equal, 0))
    call.add_rule(seccomp.ALLOW, "sched_setaffinity", seccomp.Arg(0, equal, 0))
    return call


def raise_wall(scratch: bool = False, given: device.Device = device.NONE) -> str:
    """From now on this process, its threads and children can make only the calls of this file.

    Args:
        scratch: whether the process has a folder of its own.
        given: the device that it works on.

    Raises:
        Refused: libseccomp is missing, or the kernel does not do it.
    """
    seccomp, call = library(), common_rules(scratch, given)
    for name in ("kill", "tgkill"):
        call.add_rule(seccomp.ALLOW, name, seccomp.Arg(0, seccomp.EQ, os.getpid()))
    try:
        call.load()
    except OSError as error:
        raise Refused(f"the kernel takes no filter: {error.strerror}") from None
    return ""
