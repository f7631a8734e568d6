"""gunicorn's gevent worker, except that what it refuses before the application sees it is refused in JSON too."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from gunicorn.http import errors
from gunicorn.workers.ggevent import GeventWorker

log = logging.getLogger(__name__)

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

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Answer what could not be read as a request, and say nothing of its contents in the log."""
        refused = isinstance(exc, errors.ParseException) and not isinstance(exc, errors.InvalidResponseHeader)
        status = _STATUS.get(type(exc), HTTPStatus.BAD_REQUEST) if refused else HTTPStatus.INTERNAL_SERVER_ERROR
        log.log(logging.WARNING if refused else logging.ERROR, "%d: %s", status, type(exc).__name__)
        body = json.dumps({"detail": _SENTENCE[status]}).encode()
        head = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        try:
            client.sendall("\r\n".join([*head, "", ""]).encode() + body)
        except OSError:
            log.debug("the client left before it was refused")
