"""From a session's stream to one client, whatever carries it. Survives a broken broker connection: it reads on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import cast

from redis.exceptions import RedisError

from ndif_models.wire import Status, Update, completed_frame
from ndif_tasks import updates
from ndif_tasks.jobs import Job, Jobs, is_inline, position_text

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
        url_of: Callable[[Job], str],
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
        self._send(self._completed(update) if update.status == Status.COMPLETED else update.model_dump_json())

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

    def _completed(self, update: Update) -> str | bytes:
        job = self._jobs.get(update.id)
        if job is None:
            expired = {"status": Status.ERROR, "description": "The values of this job have expired."}
            return update.model_copy(update=expired).model_dump_json()
        if is_inline(job.result):
            # Told once, it is seldom asked for again: from now on the broker keeps it no longer than a URL is good.
            kept_s = self._jobs.settings.url_ttl_s
            body = cast(bytes | None, self._jobs.redis.getex(job.result, ex=kept_s))
            if body is not None:
                return completed_frame(update, body)
        return update.model_copy(update={"data": self._url_of(job)}).model_dump_json()
