"""TCP ports: free ones, and whether one is taken."""

from __future__ import annotations

import errno
import itertools
import random
import socket
from pathlib import Path

from ndif_models.errors import SettingError

#: Below it lie the ports that services are known by.
_FIRST = 12_000
#: A farm chooses some of its ports long before it listens on them.
_given: set[int] = set()
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now.

    Raises:
        OSError: it could not, and not because another one does.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a connection of an earlier server that still winds down is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def free(count: int, host: str = "127.0.0.1") -> list[int]:
    """Distinct ports that nothing listens on, each given only once.

    None of those that the kernel gives to outgoing connections: one of them could have it before its server does.
    """
    candidates = set(_candidates()) - _given
    shuffled = random.sample(sorted(candidates), len(candidates))
    found = list(itertools.islice((port for port in shuffled if is_free(host, port)), count))
    _given.update(found)
    return found


def _candidates() -> range:
    lowest_outgoing = int(_OUTGOING.read_text().split()[0]) if _OUTGOING.exists() else _FIRST
    return range(_FIRST, lowest_outgoing if lowest_outgoing > 2 * _FIRST else 2**16)


def claim(host: str, port: int, variable: str, last: int = 0) -> int:
    """The port to use for a setting: the one asked for, or for 0 a free one, the ``last`` one where it is.

    Raises:
        SettingError: the port is taken, or none to be had here.
    """
    if port == 0:
        try:
            if is_free(host, last) and last:
                return last
        except OSError as error:
            raise SettingError(f"Nothing can listen on {host} here ({error.strerror}).") from None
        return free(1)[0]
    if not 0 < port < 65536:
        raise SettingError(f"{variable} must be a port from 1 to 65535, or 0 for a free one, and is {port}.")
    try:
        if is_free(host, port):
            return port
    except OSError as error:
        raise SettingError(
            f"Port {port} of {host} cannot be used ({error.strerror}); set {variable} to another."
        ) from None
    raise SettingError(f"Port {port} is taken; set {variable} to another, or 0 for a free one.")
