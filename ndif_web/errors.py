"""How errors leave the web tier: one handler, ``{"detail": <sentence>}``, never HTML and never a traceback."""

from __future__ import annotations

import logging

from flask import Flask, Response, current_app, jsonify, request
from gunicorn.http.errors import ParseException
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import HTTPException
from wsproto.utilities import RemoteProtocolError

from ndif_models.errors import NdifError

log = logging.getLogger(__name__)


def register(app: Flask) -> None:
    """Give every kind of error its answer."""
    app.register_error_handler(NdifError, _farm_error)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(ParseException, _unreadable)
    app.register_error_handler(RedisError, _broker_error)
    app.register_error_handler(OperationalError, _broker_error)
    app.register_error_handler(SQLAlchemyError, _database_error)
    app.register_error_handler(RemoteProtocolError, _handshake_error)
    app.register_error_handler(Exception, _unforeseen)


def answer(sentence: str, status: int) -> Response:
    """An error's response."""
    response = jsonify(detail=sentence)
    response.status_code = status
    if status == 503:
        response.headers["Retry-After"] = "2"
    return response


def _farm_error(error: NdifError) -> Response:
    return answer(str(error), error.http_status)


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    if status == 413:
        if request.content_length is not None and request.content_length <= current_app.config["MAX_CONTENT_LENGTH"]:
            return answer("The request's form has too many fields, or one that is too long.", status)
        return answer("The request is larger than this farm takes (NDIF_MAX_REQUEST_BYTES).", status)
    response = answer(error.description or error.name, status)
    for name, value in error.get_headers():
        if name.lower() != "content-type":  # Allow, Retry-After
            response.headers[name] = value
    return response


def _unreadable(error: ParseException) -> Response:
    return answer("The request's body is not as HTTP frames it.", 400)


def _handshake_error(_error: RemoteProtocolError) -> Response:
    return answer("This is no handshake of a websocket (RFC 6455, version 13).", 400)


def _broker_error(error: Exception) -> Response:
    log.error("broker: %s", type(error).__name__)
    return answer("The farm's broker cannot be reached now; try again in a moment.", 503)


def _database_error(error: SQLAlchemyError) -> Response:
    log.error("database: %s", type(error).__name__)
    return answer("The farm's database cannot answer now; try again in a moment.", 503)


def _unforeseen(error: Exception) -> Response:
    # The message may hold a caller's value; the place in our code cannot.
    log.error("unforeseen %s", type(error).__name__, exc_info=error if log.isEnabledFor(logging.DEBUG) else None)
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is not None:
        log.error("  at %s:%d", frame.tb_frame.f_code.co_filename, frame.tb_lineno)
    return answer("The farm failed to handle this request; its operators can find it in the log of the web tier.", 500)
