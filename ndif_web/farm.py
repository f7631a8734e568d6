"""What a request needs of the farm, made once per web process: settings, jobs, store, broker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from flask import current_app
from redis import Redis

from ndif_models.errors import SettingError
from ndif_models.settings import Settings
from ndif_tasks.broker import connect
from ndif_tasks.jobs import Jobs
from ndif_tasks.store import Store

#: A request waits this long for a broker that is restarting, and is then told to come back.
REQUEST_PATIENCE_S = 5.0


@dataclass
class Farm:
    """One web process's connections, opened when first used."""

    settings: Settings

    def __post_init__(self) -> None:
        if not self.settings.signing_key:
            raise SettingError("NDIF_SIGNING_KEY is not set: run `ndif start`, or set it to a long random string.")

    def warm(self) -> None:
        """Make everything that opens no connection; a third of a second, most of it the store's imports."""
        _ = self.jobs, self.patient_jobs, self.store

    @cached_property
    def redis(self) -> Redis:
        """For requests: gives up soon."""
        return connect(self.settings, REQUEST_PATIENCE_S)

    @cached_property
    def patient_redis(self) -> Redis:
        """For sessions, which wait out a broker's restart."""
        return connect(self.settings)

    @cached_property
    def jobs(self) -> Jobs:
        """The farm's jobs."""
        return Jobs(self.redis, self.settings)

    @cached_property
    def patient_jobs(self) -> Jobs:
        """The farm's jobs, for sessions."""
        return Jobs(self.patient_redis, self.settings)

    @cached_property
    def store(self) -> Store:
        """The object store."""
        return Store(self.settings)


def farm() -> Farm:
    """The farm of the current request."""
    found: Farm = current_app.extensions["ndif"]
    return found
