"""From a session's stream to one client, whatever carries it. Survives a broken broker connection: it reads on."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import cast

from redis.exceptions import RedisError

from ndif_models.wire import Status, Update, completed_frame
from ndif_tasks import updates
from ndif_tasks.jobs import Jobs, is_inline, position_text

log = logging.getLogger(__name__)

#: How often the place in line of a waiting job is looked up.
POSITION_MS = 1000
BROKER_PAUSE_S = 1.0


class Relay:
    """One session's updates, in order, each told once."""

    def __init__(
        self,
        jobs: Jobs,
        session: str,
        send: Callable[[str | bytes], None],
        url_of: Callable[[str, str], str],
        gone: Callable[[], bool],
    ) -> None:
        self._jobs = jobs
        self._session = session
        self._send = send
        self._url_of = url_of
        self._gone = gone
        self._after = updates.FROM_START
        self._waiting: str | None = None
        self._said = ""

    def run(self) -> None:
        """Relay until the client is gone."""
        while not self._gone():
            try:
                self._step()
            except RedisError as error:
                # What was read and not yet told is read again.
                log.warning("a session waits for the broker: %s", type(error).__name__)
                time.sleep(BROKER_PAUSE_S)

    def _step(self) -> None:
        rows = updates.read(self._jobs.redis, self._session, self._after, POSITION_MS)
        for row, update in rows:
            self._tell(update)
            self._after = row
        if not rows:
            self._tell_position()

    def _tell(self, update: Update) -> None:
        if update.status != Status.LOG:
            self._waiting = update.id if update.status == Status.QUEUED else None
            self._said = update.description
        if update.status == Status.COMPLETED:
            self._tell_completed(update, update.data or "")
        else:
            self._send(update.model_dump_json())

    def _tell_position(self) -> None:
        # Looked up only here: most jobs wait for less than a second, and nothing may delay them.
        job = self._jobs.get(self._waiting) if self._waiting is not None else None
        if job is None:
            return
        position = self._jobs.position(job)
        text = self._said if position is None else position_text(position)
        if text != self._said:
            self._send(Update(id=job.id, status=Status.QUEUED, description=text).model_dump_json())
            self._said = text

    def _tell_completed(self, update: Update, result: str) -> None:
        body = cast(bytes | None, self._jobs.redis.get(result)) if is_inline(result) else None
        if body is None:
            self._send(update.model_copy(update={"data": self._url_of(update.id, result)}).model_dump_json())
            return
        self._send(completed_frame(update, body))
        # Told once, it is seldom asked for again: from now on the broker keeps it no longer than a URL is good.
        with contextlib.suppress(RedisError):  # it is told, and it does expire
            self._jobs.redis.expire(result, self._jobs.settings.url_ttl_s)
