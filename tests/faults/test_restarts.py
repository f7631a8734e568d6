"""Parts of a running farm die in the middle of a job; the job's values come all the same."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest
import torch
import websocket

from tests import models
from tests.farm import Farm, wait_until
from tests.faults.conftest import kill_service, replica
from tests.sender import Sender


def running(slow: Sender) -> str:
    """A job whose block runs."""
    id = slow.submit()
    slow.wait_printed(id, "running")
    return id


def test_the_web_tier_is_killed(frail: Farm, slow: Sender) -> None:
    id = running(slow)
    kill_service(frail, "api")
    assert "logits" in slow.values(id)


def test_the_broker_is_killed_while_a_client_waits(
    frail: Farm, client: Any, remote_model: Callable[[str], Any], local_model: Callable[[str], Any]
) -> None:
    before = set(frail.redis().scan_iter("ndif:job:*"))

    def is_running() -> bool:
        new = set(frail.redis().scan_iter("ndif:job:*")) - before
        return any(frail.redis().hget(key, "status") == b"RUNNING" for key in new)

    def kill() -> None:
        wait_until(is_running, 60, "the job to run")
        kill_service(frail, "broker")
        restarted.set()

    restarted = threading.Event()
    killer = threading.Thread(target=kill)
    killer.start()
    model = remote_model(models.GPT2)
    with model.trace("The farm answers", remote=frail.url):
        import time

        until = time.monotonic() + 4
        while time.monotonic() < until:
            time.sleep(0.05)
        there = model.lm_head.output.save()
    assert restarted.is_set()
    killer.join()
    model = local_model(models.GPT2)
    with model.trace("The farm answers"):
        here = model.lm_head.output.save()
    assert torch.equal(here, there)


def test_after_the_broker_is_killed_the_next_job_is_served(frail: Farm, sender: Sender) -> None:
    kill_service(frail, "broker")
    assert "logits" in sender.values(sender.submit())


def test_the_broker_is_killed_while_jobs_wait(frail: Farm, sender: Sender, slow: Sender) -> None:
    ids = [running(slow), sender.submit(), sender.submit()]
    kill_service(frail, "broker")
    for id in ids:
        assert "logits" in sender.values(id)


def test_a_client_vanishes(slow: Sender) -> None:
    opened = websocket.create_connection(f"ws{slow.url.removeprefix('http')}/subscribe", timeout=30)
    id = slow.submit(session_id=json.loads(opened.recv())["session_id"])
    slow.wait_printed(id, "running")
    opened.sock.close()  # no goodbye
    assert "logits" in slow.values(id)


@pytest.mark.parametrize("service", ["control", "beat"])
def test_a_service_beside_the_job_is_killed_and_the_replica_goes_on(frail: Farm, slow: Sender, service: str) -> None:
    before, _ = replica(frail)
    id = running(slow)
    kill_service(frail, service)
    assert "logits" in slow.values(id)
    assert replica(frail)[0] == before
    assert frail.redis().hget(f"ndif:job:{id}", "attempt") == b"1"


def tried_again(farm: Farm, slow: Sender, kill: Callable[[int], None]) -> None:
    before, record = replica(farm)
    id = running(slow)
    kill(record["worker_pid"])
    assert "logits" in slow.values(id)
    assert replica(farm)[0] != before
    assert farm.redis().hget(f"ndif:job:{id}", "attempt") == b"2"


def test_the_process_that_holds_the_model_is_killed(frail: Farm, slow: Sender) -> None:
    def kill_zygote(worker_pid: int) -> None:
        (zygote,) = psutil.Process(worker_pid).children()
        assert "ndif_tasks.sandbox.zygote" in zygote.cmdline()
        zygote.kill()

    tried_again(frail, slow, kill_zygote)


def test_a_replica_is_killed_that_its_agent_has_not_started(frail: Farm, slow: Sender) -> None:
    kill_service(frail, "agent")
    tried_again(frail, slow, lambda worker_pid: os.kill(worker_pid, signal.SIGKILL))


def test_nothing_of_it_is_left_running(frail: Farm) -> None:
    wait_until(lambda: len(frail.replicas(models.GPT2)) == 1, 30, "one replica to be left")
    assert httpx.get(f"{frail.url}/connected").status_code == 200
    assert frail.redis().zcard("ndif:leases") == 0
