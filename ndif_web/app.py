"""The web tier: a Flask application, run by gunicorn with gevent. Never imports torch."""

from __future__ import annotations

import ipaddress
import logging
import sys
from urllib.parse import urlsplit

from flask import Flask, Response, current_app, request

from ndif_models.errors import Forbidden
from ndif_models.settings import Settings
from ndif_models.settings import settings as process_settings

from . import errors
from .farm import Farm
from .routes import admin, hub, jobs, status
from .sockets import subscribe


def create_app(settings: Settings | None = None) -> Flask:
    """Build the application; the process's own settings unless given."""
    settings = settings or process_settings()
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # its redirects are HTML, and no route of ours has two slashes
    app.config["NDIF_SETTINGS"] = settings
    app.config["MAX_CONTENT_LENGTH"] = settings.max_request_bytes
    app.config["MAX_FORM_MEMORY_SIZE"] = 256 * 1024
    app.config["MAX_FORM_PARTS"] = 10
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.extensions["ndif"] = Farm(settings)
    errors.register(app)
    for blueprint in (jobs.blueprint, status.blueprint, admin.blueprint, hub.blueprint):
        app.register_blueprint(blueprint)
    subscribe.register(app)
    app.before_request(_refuse_foreign_pages)
    app.after_request(_allow_any_origin)
    return app


def _refuse_foreign_pages() -> None:
    """Where no key is asked for, a page of another site must not send jobs or orders through its visitor's browser.

    Raises:
        Forbidden: it tried.
    """
    origin = request.headers.get("Origin")
    settings: Settings = current_app.config["NDIF_SETTINGS"]
    if origin is None or not settings.dev_mode or request.method in ("GET", "HEAD", "OPTIONS"):
        return
    if origin.partition("://")[2] != request.host or not _is_own_name(request.host, settings):
        raise Forbidden("Pages of another site may only read from a farm without keys (NDIF_DEV_MODE=true).")


def _is_own_name(host: str, settings: Settings) -> bool:
    """Whether no stranger's domain can stand for this host: a name may be pointed at this machine, a number may not."""
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return name in ("localhost", urlsplit(settings.url).hostname)


def _allow_any_origin(response: Response) -> Response:
    response.headers["Access-Control-Allow-Origin"] = "*"
    response.headers["Access-Control-Allow-Headers"] = "*"
    return response
