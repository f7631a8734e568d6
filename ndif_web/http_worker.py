"""gunicorn's gevent worker, taught two things: what it refuses before the application sees it is refused in JSON too,
and a body that nobody reads is not read to its end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from http import HTTPStatus
from typing import Any

import gevent
import gevent.exceptions
from gunicorn.http import errors
from gunicorn.workers.ggevent import GeventWorker

log = logging.getLogger(__name__)

#: A client that still sends when it has its answer is listened to for so long: hung up on at once, it would lose it.
LINGER_S = 1.0
CHUNK_BYTES = 64 * 1024

_STATUS = {
    errors.LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    errors.LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    errors.ExpectationFailed: HTTPStatus.EXPECTATION_FAILED,
}
_SENTENCE = {
    HTTPStatus.REQUEST_URI_TOO_LONG: "The request's address is too long.",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "The request's headers are too many or too long.",
    HTTPStatus.EXPECTATION_FAILED: "The request expects what this farm does not do.",
    HTTPStatus.BAD_REQUEST: "The request is not HTTP as this farm reads it.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "The farm failed to handle this request.",
}


class Worker(GeventWorker):
    """One web process."""

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> Any:
        """Serve one request; the connection goes on only if its whole body has come soon."""
        kept = super().handle_request(listener_name, req, sock, addr)
        if not _drained(req.body.read):
            raise StopIteration
        return kept

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Answer what could not be read as a request, and say nothing of its contents in the log."""
        refused = isinstance(exc, errors.ParseException) and not isinstance(exc, errors.InvalidResponseHeader)
        status = _STATUS.get(type(exc), HTTPStatus.BAD_REQUEST) if refused else HTTPStatus.INTERNAL_SERVER_ERROR
        log.log(logging.WARNING if refused else logging.ERROR, "%d: %s", status, type(exc).__name__)
        try:
            client.sendall(_answer(status))
            client.shutdown(socket.SHUT_WR)
            _drained(client.recv)
        except (OSError, gevent.exceptions.ConcurrentObjectUseError):
            log.debug("the client left before it was refused, or is being hung up on")


def _answer(status: HTTPStatus) -> bytes:
    body = json.dumps({"detail": _SENTENCE[status]}).encode()
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def _drained(read: Any) -> bool:
    """Whether what a client still sends came to its end within :data:`LINGER_S`."""
    ended = False
    with gevent.Timeout(LINGER_S, False), contextlib.suppress(errors.ParseException, OSError):
        while read(CHUNK_BYTES):
            gevent.sleep(0)  # bytes that are there already would never let the timer run
        ended = True
    return ended
