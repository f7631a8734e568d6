"""Attacks over sockets: to a server of the machine, to another process, to the kernel."""

from __future__ import annotations

from .calls import Target

# To others


def connect_over_tcp(target: Target) -> None:
    import socket

    socket.create_connection(("127.0.0.1", target["tcp"]), 5).close()


def listen_on_a_port(target: Target) -> None:
    import socket

    socket.create_server(("127.0.0.1", 0)).close()


def send_a_datagram(target: Target) -> object:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return sock.sendto(b"x", ("127.0.0.1", target["udp"]))


def connect_to_a_unix_socket(target: Target) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(target["unix"])


def connect_to_an_abstract_socket(target: Target) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\0" + target["abstract"])


def send_from_a_pair_to_somebody_else(target: Target) -> object:
    """A pair of sockets is allowed, and each may be told another place for every datagram."""
    import socket

    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        return one.sendto(b"x", target["datagrams"])


def connect_a_pair_to_somebody_else(target: Target) -> object:
    import socket

    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.connect(target["datagrams"])
        return one.send(b"x")


def pass_a_descriptor(target: Target) -> object:
    import socket

    one, other = socket.socketpair()
    with one, other:
        return socket.send_fds(one, [b"x"], [0])


# To the kernel, and the wire


def ask_the_kernel_over_netlink(target: Target) -> None:
    import socket

    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()


def see_every_packet(target: Target) -> None:
    import socket

    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()  # of no protocol: it sees none


def forge_packets(target: Target) -> None:
    import socket

    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).close()


ATTACKS = (
    *(connect_over_tcp, listen_on_a_port, send_a_datagram, connect_to_a_unix_socket, connect_to_an_abstract_socket),
    *(send_from_a_pair_to_somebody_else, connect_a_pair_to_somebody_else, pass_a_descriptor),
    *(ask_the_kernel_over_netlink, see_every_packet, forge_packets),
)
