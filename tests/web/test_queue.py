"""What operators see of the jobs that run and wait, and how they end them; and clients that leave."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests import models
from tests.farm import Farm, wait_until
from tests.sender import Sender, refusal
from tests.web.test_sessions import subscribed


def listed(farm: Farm, **query: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{farm.url}/admin/jobs", params=query).raise_for_status()
    return list(answer.json()["jobs"])


def test_jobs_are_listed_as_they_will_be_taken(farm: Farm, sender: Sender, busy: str) -> None:
    waiting = [sender.submit() for _ in range(3)]
    try:
        found = listed(farm)
        assert [one["id"] for one in found] == [busy, *waiting]
        assert [one["status"] for one in found] == ["RUNNING", "QUEUED", "QUEUED", "QUEUED"]
        assert {one["owner"] for one in found} == {"developer"} and {one["queue"] for one in found} == {models.GPT2}
        assert [one["attempt"] for one in found] == [1, 0, 0, 0] and all(one["for_s"] >= 0 for one in found)
        assert found[0]["replica_id"] in farm.get("/status")["deployments"]
        assert listed(farm, queue="other/model") == []
        assert "payload" not in json.dumps(found)
    finally:
        for id in waiting:
            sender.cancel(id)


def test_the_command_shows_and_ends_them(farm: Farm, sender: Sender, busy: str) -> None:
    waiting = sender.submit()
    shown = farm.ndif("queue").stdout.splitlines()
    assert shown[0].split() == ["JOB", "MODEL", "STATUS", "PLACE", "OWNER", "ATTEMPT", "REPLICA", "FOR"]
    assert shown[1].split()[:4] == [busy, models.GPT2, "running", "-"]
    assert shown[2].split()[:5] == [waiting, models.GPT2, "queued", "1", "developer"]
    assert [one["id"] for one in json.loads(farm.ndif("queue", models.GPT2, "--json").stdout)] == [busy, waiting]
    told = farm.ndif("kill", waiting, busy).stdout
    assert told == f"{waiting} is cancelled.\n{busy} is cancelled.\n"
    sender.wait_for(busy, "ERROR")
    assert farm.ndif("kill", waiting).stdout == f"{waiting} was over already.\n"
    wait_until(lambda: not listed(farm), what="both jobs to be over")
    assert farm.ndif("queue").stdout.startswith("No job runs or waits.")


def test_ending_what_never_was_is_one_sentence(farm: Farm) -> None:
    assert "no such job" in refusal(httpx.delete(f"{farm.url}/admin/jobs/never"), 410)
    done = farm.ndif("kill", "never", check=False)
    assert done.returncode != 0 and "no such job" in done.stderr


@pytest.mark.parametrize("path", ["/admin/jobs", "/admin/jobs/x"])
def test_they_are_for_who_has_the_key(strict: Sender, path: str) -> None:
    refusal(httpx.request("DELETE" if path.endswith("x") else "GET", f"{strict.url}{path}"), 401)


def test_a_client_that_leaves_takes_its_jobs_with_it(strict: Sender, endless: Sender, busy: str) -> None:
    strict.cancel(busy)
    strict.wait_for(busy, "ERROR")
    client, session = subscribed(strict.url, **strict.headers)
    there = strict.with_blob(endless.blob)
    ids = [there.submit(session_id=session) for _ in range(2)]
    strict.wait_for(ids[0], "RUNNING")
    client.close()
    for id in ids:
        assert strict.wait_for(id, "ERROR")["description"].startswith("The job was cancelled.")


def test_a_client_that_leaves_has_its_jobs_done_unless_told_otherwise(sender: Sender) -> None:
    client, session = subscribed(sender.url)
    id = sender.submit(session_id=session)
    client.close()
    sender.wait_for(id, "COMPLETED")


def test_a_job_that_is_over_is_written_down_with_what_it_cost_and_nothing_it_said(farm: Farm, sender: Sender) -> None:
    id = sender.submit()
    sender.wait_for(id, "COMPLETED")

    def written() -> list[dict[str, Any]]:
        found = httpx.get(f"{farm.url}/admin/jobs/finished", params={"queue": models.GPT2}).raise_for_status().json()
        return [one for one in found["jobs"] if one["id"] == id]

    (told,) = wait_until(written, what="the job to be in the database")
    assert (told["status"], told["ended"], told["owner"], told["attempts"]) == ("COMPLETED", "values", "developer", 1)
    assert told["run_s"] > 0 and told["cpu_s"] > 0 and told["peak_bytes"] > 0
    assert told["submitted_at"] <= told["started_at"] <= told["finished_at"]
    shown = farm.ndif("queue", "--finished").stdout
    assert id in shown and "completed" in shown
    for limit in ("0", "x", "100000", "-1"):
        assert "limit must be" in refusal(httpx.get(f"{farm.url}/admin/jobs/finished", params={"limit": limit}), 400)
