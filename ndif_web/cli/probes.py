"""Whether a service answers. A probe is quick, raises nothing, and imports what it needs when it is used."""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from ndif_models.settings import Settings

    from .plan import Plan

_TIMEOUT_S = 1.0
#: A worker not there yet misses the ping, so asking often finds it sooner than waiting long.
_PING_S = 0.5
_PROBE_KEY = "probe"


def broker(plan: Plan) -> bool:
    """Whether the broker answers PING."""
    return ping_broker(plan.settings) is None


def ping_broker(settings: Settings) -> str | None:
    """None when the broker answers, else why not."""
    from redis.exceptions import RedisError

    try:
        with _redis(settings) as client:
            client.ping()
    except (RedisError, OSError, ValueError) as error:
        return str(error)
    return None


def eviction_policy(settings: Settings) -> str | None:
    """What the broker does when it is full; None when it does not say."""
    from redis.exceptions import RedisError

    try:
        with _redis(settings) as client:
            return dict(client.config_get("maxmemory-policy")).get("maxmemory-policy")
    except (RedisError, OSError, ValueError):
        return None


def unreached(settings: Settings) -> Iterator[tuple[str, str | None]]:
    """Ask every store the settings name, wherever it runs: its variable, and None when it answers, else why not."""
    if settings.broker_url:
        yield "NDIF_BROKER_URL", ping_broker(settings)
    if settings.object_store_url:
        yield "NDIF_OBJECT_STORE_URL", head_bucket(settings)
    if settings.database_url:
        yield "NDIF_DATABASE_URL", ping_database(settings)


def ping_database(settings: Settings) -> str | None:
    """None when the database answers and its tables are what this farm expects, else why not."""
    from sqlalchemy.exc import SQLAlchemyError

    from ndif_models import migrations

    try:
        current = migrations.is_current(settings.db_url)
    except (SQLAlchemyError, ImportError) as error:
        return str(error).splitlines()[0]
    return None if current else "its tables are not up to date; run `ndif db upgrade`"


def object_store(plan: Plan) -> bool:
    """Whether the store takes an object; its bucket is made once it listens. Its volumes come up last."""
    settings, client = plan.settings, _s3(plan.settings)
    if not _listens(settings.object_store_url) or head_bucket(settings, client, make=True) is not None:
        return False
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.put_object(Bucket=settings.object_store_bucket, Key=_PROBE_KEY, Body=b"ready")
    except (BotoCoreError, ClientError):
        return False
    return True


def head_bucket(settings: Settings, client: Any = None, *, make: bool = False) -> str | None:
    """None when the bucket answers (``make``: made if missing), else why not."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    client = client or _s3(settings)
    try:
        client.head_bucket(Bucket=settings.object_store_bucket)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") not in ("404", "NoSuchBucket"):
            return str(error)
        if not make:
            return f"it has no bucket {settings.object_store_bucket}; make it, or set NDIF_OBJECT_STORE_BUCKET"
        with contextlib.suppress(BotoCoreError, ClientError):
            client.create_bucket(Bucket=settings.object_store_bucket)
        return head_bucket(settings, client)
    except NoCredentialsError:
        return "its keys are not known; set NDIF_OBJECT_STORE_ACCESS_KEY and NDIF_OBJECT_STORE_SECRET_KEY"
    except BotoCoreError as error:
        return str(error)
    return None


def api(plan: Plan) -> bool:
    """Whether the web tier answers ``/ping``."""
    return http_status(plan.settings.url, "/ping") == 200


def http_status(url: str, path: str, timeout_s: float = _TIMEOUT_S) -> int | None:
    """The status of a GET, or None without an answer."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path.rstrip("/") + path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def worker(name: str) -> bool:
    """Whether this machine's Celery worker of that name answers a ping through the broker."""
    from kombu.exceptions import KombuError
    from redis.exceptions import RedisError

    from ndif_tasks import celery

    try:
        return bool(celery.control.ping(destination=[f"{name}@{socket.gethostname()}"], timeout=_PING_S))
    except (OSError, KombuError, RedisError):
        return False


def _redis(settings: Settings) -> Any:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    patience = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S, "retry": Retry(NoBackoff(), 0)}
    return Redis.from_url(settings.broker_url, decode_responses=True, **patience)


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), _TIMEOUT_S).close()
    except OSError:
        return False
    return True


@functools.cache
def _s3(settings: Settings) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=settings.object_store_url,
        aws_access_key_id=settings.object_store_access_key or None,
        aws_secret_access_key=settings.object_store_secret_key or None,
        region_name=settings.object_store_region,
        verify=settings.object_store_verify,
        config=Config(
            s3={"addressing_style": "path"},
            connect_timeout=_TIMEOUT_S,
            read_timeout=5,
            retries={"total_max_attempts": 1},
        ),
    )
