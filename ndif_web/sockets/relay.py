"""From a session's stream to one client, whatever carries it. Survives a broken broker connection: it reads on."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from ndif_models.wire import Status, Update, completed_frame
from ndif_tasks import updates
from ndif_tasks.jobs import Jobs
from ndif_tasks.updates import Entry

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
        entries = updates.read(self._jobs.redis, self._session, self._after, POSITION_MS)
        for entry in entries:
            self._tell(entry)
            self._after = entry.row
        if not entries:
            self._tell_position()

    def _tell(self, entry: Entry) -> None:
        update = entry.update
        if update.status != Status.LOG:
            self._waiting = update.id if update.status == Status.QUEUED else None
            self._said = update.description
        if update.status != Status.COMPLETED:
            self._send(update.model_dump_json())
            return
        self._send(self._completed(entry))
        with contextlib.suppress(RedisError):  # it is told, and expires by itself
            self._jobs.told(self._session, entry.row, update.data or "")

    def _tell_position(self) -> None:
        # Looked up only here: most jobs wait for less than a second, and nothing may delay them.
        job = self._jobs.get(self._waiting) if self._waiting is not None else None
        if job is None:
            return
        position = self._jobs.position(job)
        text = self._said if position is None else str(position)
        if text != self._said:
            self._send(Update(id=job.id, status=Status.QUEUED, description=text).model_dump_json())
            self._said = text

    def _completed(self, entry: Entry) -> str | bytes:
        update, where = entry.update, entry.update.data or ""
        body = self._jobs.body(where) if entry.body is None else entry.body
        if body is not None:
            return completed_frame(update, body)
        return update.model_copy(update={"data": self._url_of(update.id, where)}).model_dump_json()
