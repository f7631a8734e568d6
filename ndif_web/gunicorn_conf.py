"""How gunicorn runs the web tier: ``gunicorn -c python:ndif_web.gunicorn_conf "ndif_web.app:create_app()"``.

Unlike every other module, importing this does something: gevent must patch the standard library before anything else
is imported, and gunicorn reads its configuration from module attributes.
"""

# ruff: noqa: E402
from gevent import monkey

monkey.patch_all()

import gc
from typing import Any

from ndif_models.settings import settings

_settings = settings()
_host = f"[{_settings.api_host}]" if ":" in _settings.api_host else _settings.api_host

bind = [f"{_host}:{_settings.api_port}"]
workers = _settings.api_workers
worker_class = "ndif_web.http_worker.Worker"
worker_connections = 2000
timeout = 60
graceful_timeout = 3
keepalive = 5
backlog = 512
# Request lines hold signatures and ids of jobs; the application logs what may be logged.
accesslog = None
errorlog = "-"
loglevel = _settings.log_level.lower()
proc_name = "ndif-api"
# A socket in the home folder would outlive a killed farm and be shared by two of them.
control_socket_disable = True


def post_worker_init(worker: Any) -> None:
    """Make what the first request would wait for; the garbage collector need not walk it again while a client waits."""
    farm = worker.wsgi.extensions["ndif"]
    farm.warm()
    gc.collect()
    gc.freeze()
