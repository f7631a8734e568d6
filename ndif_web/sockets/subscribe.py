"""``/subscribe``: the raw websocket of nnsight 0.8. Always upgrades; a wrong key is refused at the POST."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from socket import SO_KEEPALIVE, SOL_SOCKET
from typing import Any

from flask import Flask, request
from flask_sock import Sock
from redis.exceptions import RedisError
from simple_websocket import ConnectionClosed

from ndif_models.errors import NdifError
from ndif_models.keys import new_id
from ndif_tasks import updates
from ndif_web.auth import identify, new_session
from ndif_web.farm import farm
from ndif_web.routes.jobs import result_url

from .relay import Relay


def register(app: Flask) -> None:
    """Add the route."""
    # No pings: a client that fires a trace and awaits it minutes later answers none till then, and would be hung up on.
    app.config["SOCK_SERVER_OPTIONS"] = {"max_message_size": 64 * 1024}
    Sock(app).route("/subscribe")(subscribe)


class WholeFrames:
    """The socket under a websocket, which is sent to with ``send``: under gevent that sends as much as fits.

    Here it sends all of a frame, and no frame (a pong, say) inside another.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, data: bytes) -> int:
        """Send all of it."""
        with self._lock:
            self._sock.sendall(data)
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def subscribe(socket: Any) -> None:
    """Give the client its session's id, then every update until it leaves."""
    socket.sock = WholeFrames(socket.sock)
    socket.input_buffer = deque(maxlen=0)  # a client has nothing to say here; whatever it sends is let go
    with contextlib.suppress(ConnectionClosed, OSError):
        socket.sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)  # a client whose machine is gone is noticed all the same
        _serve(socket)


def _serve(socket: Any) -> None:
    try:
        owner = identify(request, farm().settings).owner
    except NdifError:
        # Nobody's session: every request naming it is refused with a sentence, and there is nothing to tell.
        socket.send(json.dumps({"session_id": new_id("s-")}))
        while socket.connected:
            time.sleep(1)
        return
    session = new_session(owner, farm().settings)
    try:
        socket.send(json.dumps({"session_id": session}))
        Relay(farm().patient_jobs, session, socket.send, result_url, lambda: not socket.connected).run()
    finally:
        with contextlib.suppress(RedisError):  # jobs for a client that is gone would run for nobody, and no more
            updates.close(farm().redis, session, farm().settings.result_ttl_s)
            if farm().settings.cancel_on_disconnect:
                farm().jobs.cancel_all(session)
