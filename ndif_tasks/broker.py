"""The farm's connection to Redis or Valkey, patient enough to ride out a restart of it."""

from __future__ import annotations

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError
from redis.retry import Retry

from ndif_models.errors import SettingError
from ndif_models.settings import Settings

TRANSIENT = (ConnectionError, TimeoutError, BusyLoadingError)


def connect(settings: Settings, patience_s: float = 60.0) -> Redis:
    """A client whose calls are retried for about ``patience_s`` before they raise one of ``TRANSIENT``.

    Raises:
        SettingError: no broker is known.
    """
    if not settings.broker_url:
        raise SettingError("No broker is known: run `ndif start`, or set NDIF_BROKER_URL.")
    cap_s = 0.5
    retry = Retry(ExponentialBackoff(cap=cap_s, base=0.02), retries=max(3, int(patience_s / cap_s)))
    return Redis.from_url(
        settings.broker_url, retry=retry, retry_on_error=list(TRANSIENT), socket_keepalive=True, socket_timeout=30
    )
