"""What is remembered of a fleet: why a model could not be loaded, and when it is tried again."""

from __future__ import annotations

import pytest
from redis import Redis

from ndif_tasks import fleet
from ndif_tasks.fleet import FIRST_REST_S, LONGEST_REST_S, Failure


@pytest.fixture(autouse=True)
def empty(broker: Redis) -> None:
    broker.flushall()


def test_a_failure_is_remembered_as_one_sentence_and_counted(broker: Redis) -> None:
    assert fleet.failure(broker, "m") is None
    fleet.note_failure(broker, "m", "m cannot be loaded:\n  no memory...")
    fleet.note_failure(broker, "m", "still none")
    found = fleet.failure(broker, "m")
    assert found is not None and (found.reason, found.times) == ("still none.", 2)
    fleet.clear_failure(broker, "m")
    fleet.note_failure(broker, "m", "m cannot be loaded:\n  no memory...")
    found = fleet.failure(broker, "m")
    assert found is not None and (found.reason, found.times) == ("m cannot be loaded: no memory.", 1)


def test_each_failure_doubles_the_pause_up_to_a_longest() -> None:
    for times in range(1, 40):
        pause_s = min(FIRST_REST_S * 2 ** (times - 1), LONGEST_REST_S)
        failed = Failure("why", times, 1000.0)
        assert failed.rests(1000.0 + pause_s - 0.01) and not failed.rests(1000.0 + pause_s)
