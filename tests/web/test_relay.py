"""The relay from a session's stream to its client, against a real broker."""

from __future__ import annotations

import io
import json
import re
import zipfile
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from ndif_tasks import updates
from ndif_tasks.jobs import Jobs
from ndif_web.sockets.relay import Relay
from tests.job_steps import claim, entries, get, running, submit, told


class Client:
    """What a client was sent; it leaves when it has read its last."""

    def __init__(self, jobs: Jobs, last: str) -> None:
        self.jobs = jobs
        self.last = last
        self.sent: list[str | bytes] = []

    def listen(self) -> list[str | bytes]:
        Relay(self.jobs, "s", self.sent.append, lambda job, result: f"url of {job}: {result}", self._gone).run()
        return self.sent

    def _gone(self) -> bool:
        return any(self.last in (one if isinstance(one, str) else "COMPLETED") for one in self.sent)


def statuses(sent: list[str | bytes]) -> list[str]:
    return [json.loads(one)["status"] if isinstance(one, str) else "frame" for one in sent]


@pytest.mark.parametrize("size", [10, 100_000], ids=["told along", "looked up"])
def test_a_result_in_the_broker_is_told_as_one_frame_and_its_row_goes(jobs: Jobs, size: int) -> None:
    jobs.complete(running(jobs), b"v" * size, {})
    sent = Client(jobs, "COMPLETED").listen()
    assert statuses(sent) == ["QUEUED", "DISPATCHED", "RUNNING", "frame"]
    assert isinstance(sent[-1], bytes)
    assert b"v" * size in zipfile.ZipFile(io.BytesIO(sent[-1])).read("frame/data.pkl")
    assert "COMPLETED" not in told(jobs) and jobs.body(get(jobs).result) == b"v" * size


def test_a_result_elsewhere_and_one_that_has_expired_are_told_as_urls(jobs: Jobs, broker: Redis) -> None:
    jobs.complete(running(jobs), "results/j/1", {})
    assert json.loads(Client(jobs, "COMPLETED").listen()[-1])["data"] == "url of j: results/j/1"
    jobs.complete(running(jobs, "k"), bytes(100_000), {})
    broker.delete(get(jobs, "k").result)
    sent = Client(jobs, '"k","status":"COMPLETED"').listen()
    assert json.loads(sent[-1])["data"] == f"url of k: {get(jobs, 'k').result}"


def test_what_a_client_was_not_sent_is_still_there(jobs: Jobs) -> None:
    jobs.complete(running(jobs), b"v", {})

    def hang_up(_: object) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Relay(jobs, "s", hang_up, lambda *_: "", lambda: False).run()
    assert told(jobs)[-1] == "COMPLETED" and entries(jobs)[-1].body == b"v"


def test_a_broker_away_delays_what_is_told_and_repeats_nothing(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.complete(running(jobs), bytes(100_000), {})
    failures = {"body": 1, "told": 1}

    def frail(name: str) -> Any:
        real = getattr(jobs, name)

        def call(*given: Any) -> Any:
            failures[name] -= 1
            if failures[name] >= 0:
                raise ConnectionError
            return real(*given)

        return call

    for name in failures:
        monkeypatch.setattr(jobs, name, frail(name))
    monkeypatch.setattr("ndif_web.sockets.relay.BROKER_PAUSE_S", 0)
    assert statuses(Client(jobs, "COMPLETED").listen()) == ["QUEUED", "DISPATCHED", "RUNNING", "frame"]


def test_a_place_in_line_is_told_when_it_changes(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ndif_web.sockets.relay.POSITION_MS", 1)
    submit(jobs, "other", stream="other")
    submit(jobs)
    client = Client(jobs, "Position 1")
    real = updates.read

    def read(*given: Any) -> Any:
        if client.sent and jobs.waiting("org/model") == 2:
            claim(jobs)
        return real(*given)

    monkeypatch.setattr(updates, "read", read)
    places = [re.search(r"Position \d", one) for one in client.listen() if isinstance(one, str)]
    assert [place[0] for place in places if place] == ["Position 2", "Position 1"]
