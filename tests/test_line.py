"""Who is next: tiers, then turns between owners, then age; and how long that may take."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from ndif_tasks.jobs import Jobs, Position
from tests.job_steps import QUEUE, claim, get, running, submit

OWNERS = "abc"


def served(jobs: Jobs, count: int) -> list[str]:
    """The ids of the next jobs, each ended at once."""
    found = []
    for _ in range(count):
        job = claim(jobs)
        assert jobs.running(job) and jobs.complete(job, b"v", {})
        found.append(job.id)
    return found


def many(jobs: Jobs, owner: str, count: int) -> None:
    for number in range(count):
        submit(jobs, f"{owner}{number}", owner=owner)


def test_one_job_of_a_key_goes_before_the_five_hundred_of_another(jobs: Jobs) -> None:
    many(jobs, "a", 500)
    assert served(jobs, 1) == ["a0"]
    many(jobs, "b", 1)
    assert jobs.position(get(jobs, "b0")) == Position(1, pytest.approx(0, abs=1))
    assert served(jobs, 2) == ["b0", "a1"]


def test_keys_take_turns(jobs: Jobs) -> None:
    for owner in OWNERS:
        many(jobs, owner, 3)
    assert served(jobs, 9) == [f"{owner}{number}" for number in range(3) for owner in OWNERS]


def test_a_new_key_is_served_next_however_many_keys_wait(jobs: Jobs) -> None:
    for owner in range(20):
        many(jobs, f"k{owner}-", 3)
    served(jobs, 25)
    submit(jobs, "new", owner="new")
    assert served(jobs, 1) == ["new"]


def test_a_key_that_sends_one_after_the_other_is_new_only_once(jobs: Jobs) -> None:
    many(jobs, "a", 10)
    served(jobs, 1)
    order = []
    for number in range(4):
        submit(jobs, f"loop{number}", owner="loop")
        while not (order and order[-1] == f"loop{number}"):
            order += served(jobs, 1)
    assert order == ["loop0", "a1", "loop1", "a2", "loop2", "a3", "loop3"]


def test_what_somebody_had_served_counts_only_while_others_wait(jobs: Jobs) -> None:
    many(jobs, "a", 50)
    served(jobs, 50)
    many(jobs, "b", 2)
    for id in ("first", "second"):
        submit(jobs, id, owner="a")
    assert served(jobs, 4) == ["b0", "first", "b1", "second"]


def test_those_behind_a_cancelled_job_of_the_same_key_move_up(jobs: Jobs) -> None:
    many(jobs, "a", 4)
    many(jobs, "b", 4)
    for id in ("a0", "a1"):
        jobs.cancel(id)
    assert served(jobs, 6) == ["a2", "b0", "a3", "b1", "b2", "b3"]


def test_jobs_of_a_key_with_priority_go_first_and_take_turns_too(jobs: Jobs) -> None:
    many(jobs, "a", 2)
    for id, owner in (("p0", "p"), ("p1", "p"), ("q0", "q")):
        submit(jobs, id, owner=owner, tags=("priority",))
    assert served(jobs, 5) == ["p0", "q0", "p1", "a0", "a1"]


def test_a_job_in_line_again_is_the_first_of_its_tier(jobs: Jobs) -> None:
    first = running(jobs, "first")
    submit(jobs, "fresh", owner="fresh")
    submit(jobs, "urgent", owner="fresh", tags=("priority",))
    jobs.hand_back("first", first.attempt)
    assert served(jobs, 3) == ["urgent", "first", "fresh"]


def test_an_emptied_line_leaves_nothing_behind_but_its_pace(jobs: Jobs, broker: Redis) -> None:
    for owner in OWNERS:
        many(jobs, owner, 2)
    jobs.cancel("a1")
    served(jobs, 3)
    jobs.fail_waiting(QUEUE, "gone")
    kept = {key for key in broker.keys("ndif:*") if b":job:" not in key and b":result:" not in key}  # type: ignore[union-attr]
    assert kept == {
        b"ndif:sequence",
        b"ndif:queues",
        b"ndif:finished",
        b"ndif:updates:s",
        f"ndif:pace:{QUEUE}".encode(),
    }


def test_a_wait_is_told_from_how_long_jobs_took_and_how_many_run_at_once(jobs: Jobs, broker: Redis) -> None:
    for number in range(5):
        submit(jobs, str(number))
    claim(jobs), claim(jobs)
    assert jobs.position(get(jobs, "4")) == Position(3, None)
    broker.set(f"ndif:pace:{QUEUE}", "40")
    place = jobs.position(get(jobs, "4"))
    assert place == Position(3, 60.0)
    assert str(place) == "Position 3 in the queue. About 60 s."
    assert str(Position(9, 300.0)) == "Position 9 in the queue. About 5 min."
    assert str(Position(1, 0.2)) == str(Position(1, None)) == "Position 1 in the queue."


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["a", "b", "c", "claim", "cancel", "back"]), max_size=60))
def test_whatever_happens_each_job_is_in_line_once_and_nobody_waits_more_than_a_round(
    jobs: Jobs, broker: Redis, steps: list[str]
) -> None:
    broker.flushall()
    waiting: dict[str, str] = {}
    passed_by: dict[str, int] = {}
    taken = []
    for number, step in enumerate(steps):
        if step in OWNERS:
            submit(jobs, f"{step}{number}", owner=step)
            waiting[f"{step}{number}"] = step
        elif step == "cancel" and waiting:
            jobs.cancel(sorted(waiting)[-1])
            waiting.pop(sorted(waiting)[-1])
        elif step == "back" and taken:
            job = taken.pop()
            jobs.hand_back(job.id, job.attempt)
            if job.attempt < jobs.settings.max_attempts:
                waiting[job.id] = job.id[0]
        elif step == "claim" and waiting:
            job = claim(jobs)
            taken.append(job)
            owner = waiting.pop(job.id)
            for other in set(waiting.values()) - {owner}:
                passed_by[other] = passed_by.get(other, 0) + (job.attempt == 1)
            passed_by[owner] = 0
            assert all(count <= 2 * len(OWNERS) for count in passed_by.values())
        assert sorted(jobs.line(QUEUE)) == sorted(waiting)
    assert jobs.claim(QUEUE, "r") is None or waiting
