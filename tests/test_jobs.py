"""The job script against a real broker: which moves are allowed, for whom, and what clients are told."""

from __future__ import annotations

import pytest
from redis import Redis

from ndif_models.errors import Forbidden
from ndif_models.settings import Settings
from ndif_models.wire import Status
from ndif_tasks import updates
from ndif_tasks.jobs import MAX_DESCRIPTION, Claimed, Jobs, Position, is_inline
from tests.farm import wait_until
from tests.job_steps import QUEUE, claim, entries, get, running, submit, told


def test_a_job_walks_from_queued_to_completed_and_each_step_is_told(jobs: Jobs) -> None:
    job = running(jobs)
    assert jobs.log(job, ["one", "two"])
    assert jobs.complete(job, b"values", {"runtime": 1.0})
    assert told(jobs) == ["QUEUED", "DISPATCHED", "RUNNING", "LOG", "LOG", "COMPLETED"]
    done = get(jobs)
    assert (done.status, done.meta, done.finished, done.log_lines) == (Status.COMPLETED, {"runtime": 1.0}, True, 2)
    assert is_inline(done.result) and jobs.redis.get(done.result) == b"values"
    assert (entries(jobs)[-1].update.data, entries(jobs)[-1].body) == (done.result, b"values")


def test_a_claim_carries_what_was_submitted(jobs: Jobs) -> None:
    submit(jobs, env={"peft": "a/b"}, payload=bytes(range(256)), compress=False)
    job = claim(jobs)
    assert (job.payload, job.env, job.compress, job.attempt) == (bytes(range(256)), {"peft": "a/b"}, False, 1)
    assert job.put_urls == ["u1", "u2", "u3"] and job.has_session


def test_a_payload_in_the_store_is_named_and_not_carried(jobs: Jobs) -> None:
    submit(jobs, payload=None, payload_url="http://store/p")
    job = claim(jobs)
    assert (job.payload, job.payload_url) == (None, "http://store/p")


def test_a_job_without_a_session_has_a_stream_of_its_own(jobs: Jobs) -> None:
    submit(jobs, stream="j")
    assert not claim(jobs).has_session
    assert told(jobs, "j") == ["QUEUED", "DISPATCHED"]


def test_jobs_are_taken_in_the_order_they_came(jobs: Jobs) -> None:
    assert [submit(jobs, id) for id in ("a", "b", "c")] == [1, 2, 3]
    assert [claim(jobs).id for _ in range(3)] == ["a", "b", "c"]
    assert jobs.claim(QUEUE, "r") is None


def test_queues_do_not_mix(jobs: Jobs) -> None:
    submit(jobs, queue="other")
    assert jobs.claim(QUEUE, "r") is None


def test_positions_move_up(jobs: Jobs) -> None:
    for id in "abc":
        submit(jobs, id)
    claim(jobs)
    assert [jobs.position(get(jobs, id)) for id in "abc"] == [None, Position(1, None), Position(2, None)]
    jobs.cancel("b")
    assert jobs.position(get(jobs, "c")) == Position(1, None)
    assert jobs.waiting(QUEUE) == 1


def test_submitting_twice_is_one_job(jobs: Jobs, tickets: list[str]) -> None:
    submit(jobs)
    submit(jobs)
    assert jobs.waiting(QUEUE) == 1
    assert told(jobs) == ["QUEUED"]
    assert tickets == [QUEUE, QUEUE]


def test_a_ticket_is_sent_for_each_job(jobs: Jobs, tickets: list[str]) -> None:
    submit(jobs, "a")
    submit(jobs, "b", queue="other")
    assert tickets == [QUEUE, "other"]


def test_a_terminal_status_is_the_last(jobs: Jobs) -> None:
    job = running(jobs)
    jobs.complete(job, "results/j/1", {})
    assert not jobs.running(job)
    assert not jobs.fail(job, "too late")
    assert not jobs.log(job, ["too late"])
    assert not jobs.cancel("j")
    jobs.hand_back("j", 1)
    assert get(jobs).status == Status.COMPLETED
    assert told(jobs).count("COMPLETED") == 1 and "ERROR" not in told(jobs)


def test_the_same_move_again_is_done_and_told_once(jobs: Jobs) -> None:
    job = running(jobs)
    assert jobs.running(job)
    assert jobs.complete(job, b"v", {})
    assert jobs.complete(job, b"v", {})
    assert told(jobs) == ["QUEUED", "DISPATCHED", "RUNNING", "COMPLETED"]


def test_a_waiting_job_cannot_complete(jobs: Jobs) -> None:
    submit(jobs)
    job = claim(jobs)
    jobs.hand_back("j", 1)
    assert not jobs.complete(job, b"v", {})
    assert get(jobs).status == Status.QUEUED


def test_a_job_that_was_not_started_cannot_complete(jobs: Jobs) -> None:
    submit(jobs)
    assert not jobs.complete(claim(jobs), b"v", {})


def test_a_claim_tells_whether_others_wait(jobs: Jobs) -> None:
    submit(jobs, "one")
    submit(jobs, "two")
    assert claim(jobs).others_wait
    assert not claim(jobs).others_wait


def test_an_unknown_job_cannot_be_moved(jobs: Jobs) -> None:
    ghost = Claimed("ghost", 1, True, {}, None, "", [], (), True, False)
    assert not jobs.running(ghost) and not jobs.complete(ghost, "x", {}) and not jobs.log(ghost, ["x"])
    assert not jobs.cancel("ghost") and jobs.renew(ghost) == "lost" and jobs.get("ghost") is None
    jobs.hand_back("ghost", 1)
    assert jobs.redis.keys("ndif:job:*") == []


def test_an_older_attempt_can_do_nothing(jobs: Jobs) -> None:
    old = running(jobs)
    jobs.hand_back("j", old.attempt)
    new = claim(jobs, "other")
    assert new.attempt == 2 and jobs.running(new)
    assert not jobs.complete(old, b"stale", {})
    assert not jobs.fail(old, "stale")
    assert not jobs.log(old, ["stale"])
    assert jobs.renew(old) == "lost"
    jobs.hand_back("j", old.attempt)
    assert get(jobs).status == Status.RUNNING
    assert jobs.complete(new, b"fresh", {})
    assert jobs.redis.get(get(jobs).result) == b"fresh"


def test_a_job_handed_back_keeps_its_place(jobs: Jobs, tickets: list[str]) -> None:
    first = running(jobs, "a")
    submit(jobs, "b")
    tickets.clear()
    jobs.hand_back("a", first.attempt)
    assert tickets == [QUEUE]
    assert claim(jobs).id == "a"


def test_a_job_is_tried_three_times_and_then_ended_with_a_sentence(jobs: Jobs, tickets: list[str]) -> None:
    submit(jobs)
    for attempt in (1, 2, 3):
        assert claim(jobs).attempt == attempt
        jobs.hand_back("j", attempt)
    assert get(jobs).status == Status.ERROR
    assert get(jobs).description == "The replicas running this job stopped 3 times; it is not tried again."
    assert jobs.claim(QUEUE, "r") is None
    assert len(tickets) == 3


def test_a_held_lease_is_renewed_and_an_expired_one_hands_the_job_back(jobs: Jobs, broker: Redis) -> None:
    hasty = Jobs(broker, Settings(lease_s=0.05))
    submit(jobs)
    job = hasty.claim(QUEUE, "r")
    assert job is not None
    assert jobs.renew(job) == "held"
    assert jobs.hand_back_expired() == 0
    assert hasty.renew(job) == "held"
    wait_until(lambda: jobs.hand_back_expired() == 1, what="the lease runs out by the broker's clock")
    assert jobs.hand_back_expired() == 0
    assert get(jobs).status == Status.QUEUED
    assert jobs.renew(job) == "lost"


def test_a_cancelled_waiting_job_ends_at_once(jobs: Jobs) -> None:
    submit(jobs)
    assert jobs.cancel("j")
    assert (get(jobs).status, get(jobs).description) == (Status.ERROR, "The job was cancelled.")
    assert jobs.claim(QUEUE, "r") is None
    assert not jobs.cancel("j")


def test_a_cancelled_running_job_is_told_to_its_replica(jobs: Jobs) -> None:
    job = running(jobs)
    assert jobs.cancel("j")
    assert get(jobs).status == Status.RUNNING
    assert jobs.renew(job) == "cancel"
    assert jobs.fail(job, "The job was cancelled.")


def test_all_jobs_of_a_session_are_cancelled_and_no_others(jobs: Jobs) -> None:
    done = running(jobs, "done")
    jobs.complete(done, b"v", {})
    job = running(jobs, "runs")
    submit(jobs, "waits")
    submit(jobs, "another", stream="other")
    jobs.cancel_all("s")
    assert (get(jobs, "waits").status, jobs.renew(job)) == (Status.ERROR, "cancel")
    assert (get(jobs, "done").status, get(jobs, "another").status) == (Status.COMPLETED, Status.QUEUED)


def test_a_cancelled_job_whose_replica_stops_is_not_tried_again(jobs: Jobs) -> None:
    job = running(jobs)
    jobs.cancel("j")
    jobs.hand_back("j", job.attempt)
    assert (get(jobs).status, get(jobs).description) == (Status.ERROR, "The job was cancelled.")


def test_every_waiting_job_of_a_queue_can_be_ended_with_a_reason(jobs: Jobs) -> None:
    job = running(jobs, "runs")
    submit(jobs, "waits")
    submit(jobs, "elsewhere", queue="other")
    assert jobs.fail_waiting(QUEUE, "corrupt") == 1
    assert get(jobs, "waits").description == "corrupt"
    assert get(jobs, "elsewhere").status == Status.QUEUED
    assert jobs.complete(job, b"v", {})


def test_a_lost_ticket_is_sent_again_and_a_present_one_is_not(jobs: Jobs, tickets: list[str], broker: Redis) -> None:
    for id in "abc":
        submit(jobs, id)
    broker.lpush(QUEUE, "the one ticket that is left")
    tickets.clear()
    assert jobs.reissue_tickets() == 2
    assert tickets == [QUEUE, QUEUE]


def test_only_the_newest_part_of_a_long_description_is_kept(jobs: Jobs) -> None:
    job = running(jobs)
    jobs.fail(job, "x" * 10 * MAX_DESCRIPTION + "the line that matters")
    text = get(jobs).description
    assert len(text) == MAX_DESCRIPTION and text.endswith("the line that matters")


@pytest.mark.parametrize("text", ["é\n\t\"'\\", "\x00\x1f\x7f", "\U0001f600", "]]>{}%s"])
def test_any_text_survives_the_script(jobs: Jobs, text: str) -> None:
    job = running(jobs)
    jobs.log(job, [text])
    jobs.fail(job, text, {"k": text})
    assert updates.log_lines(jobs.redis, "s", "j") == [text]
    assert (get(jobs).description, get(jobs).meta) == (text, {"k": text})
    assert entries(jobs)[-1].update.meta == {"k": text}


def test_what_is_over_expires_and_holds_no_payload(jobs: Jobs, broker: Redis) -> None:
    job = running(jobs)
    assert broker.ttl("ndif:job:j") == -1
    jobs.complete(job, b"v", {})
    kept = set(broker.hkeys("ndif:job:j"))  # type: ignore[arg-type]
    assert not {b"payload", b"put_urls"} & kept
    for key in ("ndif:job:j", "ndif:updates:s", get(jobs).result):
        assert 0 < broker.ttl(key) <= jobs.settings.result_ttl_s  # type: ignore[operator]


def test_a_reader_resumes_behind_what_it_has_read(jobs: Jobs) -> None:
    job = running(jobs)
    read = entries(jobs)
    jobs.complete(job, b"v", {})
    assert [entry.update.status for entry in updates.read(jobs.redis, "s", read[-1].row, 10)] == [Status.COMPLETED]
    assert updates.read(jobs.redis, "nobody's", updates.FROM_START, 10) == []


def test_what_was_told_goes_and_its_result_is_kept_for_less_long_never_longer(jobs: Jobs, broker: Redis) -> None:
    jobs.complete(running(jobs), b"v", {})
    result = get(jobs).result
    jobs.told("s", entries(jobs)[-1].row, result)
    assert told(jobs) == ["QUEUED", "DISPATCHED", "RUNNING"]
    assert jobs.body(result) == b"v" and 0 < broker.ttl(result) <= jobs.settings.url_ttl_s  # type: ignore[operator]
    broker.expire(result, 5)
    jobs.told("s", "0-1", result)
    assert broker.ttl(result) <= 5  # type: ignore[operator]


def test_no_row_is_dropped_before_a_slow_reader_has_come_to_it(jobs: Jobs) -> None:
    jobs.complete(running(jobs), b"v", {})
    for number in range(8):
        job = running(jobs, f"noisy{number}")
        jobs.log(job, ["x"] * 7_500)
    found, after = [], updates.FROM_START
    while rows := updates.read(jobs.redis, "s", after, None, count=10_000):
        found += [entry.update.status for entry in rows]
        after = rows[-1].row
    assert (found.count(Status.COMPLETED), found.count(Status.LOG)) == (1, 60_000)


def test_a_session_nobody_listens_to_takes_no_job(jobs: Jobs, tickets: list[str]) -> None:
    updates.close(jobs.redis, "s", 60)
    with pytest.raises(Forbidden, match="subscribe again"):
        submit(jobs)
    assert (jobs.get("j"), jobs.waiting(QUEUE), tickets) == (None, 0, [])


@pytest.mark.parametrize(("stream", "size"), [("s", 65537), ("j", 1)], ids=["large", "nobody waits"])
def test_a_result_is_told_along_only_to_who_waits_and_when_small(jobs: Jobs, stream: str, size: int) -> None:
    submit(jobs, stream=stream)
    job = claim(jobs)
    jobs.running(job)
    jobs.complete(job, bytes(size), {})
    assert entries(jobs, stream)[-1].body is None


def test_what_is_over_is_told_for_the_database_until_it_is_written_down(jobs: Jobs, broker: Redis) -> None:
    job = running(jobs, "done")
    meta = {"runtime": 1.5, "cpu_s": 2.5, "max_memory_usage": 3, "policy": "default", "ended": "values"}
    jobs.complete(job, b"the values", meta)
    submit(jobs, "cancelled", owner="another")
    jobs.cancel("cancelled")
    running(jobs, "runs")
    entries, (done, cancelled) = jobs.finished(10)
    assert entries == 2
    assert (done.id, done.owner, done.status, done.ended, done.attempts, done.replica) == (
        *("done", "me", "COMPLETED", "values", 1, "r"),
    )
    assert (done.run_s, done.cpu_s, done.peak_bytes, done.policy) == (1.5, 2.5, 3, "default")
    assert done.started_at is not None and done.submitted_at <= done.started_at <= done.finished_at
    assert (cancelled.id, cancelled.status, cancelled.attempts, cancelled.started_at) == ("cancelled", "ERROR", 0, None)
    broker.delete("ndif:job:done")
    assert [(count, [one.id for one in found]) for count, found in (jobs.finished(1), jobs.finished(2))] == [
        (1, []),
        (2, ["cancelled"]),
    ]
    jobs.written_down(1)
    assert [one.id for one in jobs.finished(10)[1]] == ["cancelled"]
    jobs.written_down(1)
    assert jobs.finished(10) == (0, []) and broker.exists("ndif:finished") == 0
