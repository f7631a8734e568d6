"""A recorded good request, and a second web tier of the same farm with other settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from ndif_web.cli.ports import free
from tests import blocks, models
from tests.farm import Farm, wait_until
from tests.sender import Sender, record

API_KEY = "a-key-of-this-test"
MAX_REQUEST_BYTES = 2**20


@pytest.fixture(scope="session")
def sender(farm: Farm, remote_model: Callable[[str], Any]) -> Sender:
    """Sends a good trace of the tiny GPT-2."""
    model = remote_model(models.GPT2)
    return Sender(farm.url, model.to_model_key(), record(model, blocks.good))


@pytest.fixture(scope="module")
def endless(sender: Sender, remote_model: Callable[[str], Any]) -> Sender:
    """Sends a block that never ends."""
    return sender.with_blob(record(remote_model(models.GPT2), blocks.endless))


@pytest.fixture
def busy(sender: Sender, endless: Sender) -> Iterator[str]:
    """A replica that is busy until the job yielded is cancelled."""
    id = endless.submit()
    endless.wait_printed(id, "running")
    yield id
    sender.cancel(id)
    sender.wait_for(id, "ERROR")


@pytest.fixture(scope="session")
def strict(farm: Farm, sender: Sender) -> Iterator[Sender]:
    """The same, to another web tier of the farm: it wants a key, takes 1 MiB at most, cancels when a client is gone."""
    port = free(1)[0]
    url = f"http://127.0.0.1:{port}"
    own = {"NDIF_API_PORT": str(port), "NDIF_API_URL": url, "NDIF_DEV_MODE": "false", "NDIF_API_KEY": API_KEY}
    env = {**farm.environment, **own, "NDIF_MAX_REQUEST_BYTES": str(MAX_REQUEST_BYTES)}
    env["NDIF_CANCEL_ON_DISCONNECT"] = "true"
    argv = [sys.executable, "-m", "gunicorn", "-c", "python:ndif_web.gunicorn_conf", "ndif_web.app:create_app()"]
    tier = subprocess.Popen(argv, env=env, cwd=farm.home, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(url), what="the second web tier")
        yield replace(sender, url=url, headers={"ndif-api-key": API_KEY})
    finally:
        tier.terminate()
        tier.wait(15)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ping").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="session")
def api_pid(farm: Farm) -> int:
    """The web tier's leash; another pid afterwards means that a test has killed it."""
    pid = farm.service_pid("api")
    os.kill(pid, 0)
    return pid


@pytest.fixture(scope="module")
def nothing_is_lost(farm: Farm, sender: Sender, api_pid: int) -> Iterator[None]:
    """After all of it a good trace still works, in the same web tier, and the broker holds no refused job."""
    before = set(farm.redis().scan_iter("ndif:job:*"))
    yield
    id = sender.submit()
    assert "logits" in sender.values(id)
    assert farm.service_pid("api") == api_pid
    left = set(farm.redis().scan_iter("ndif:job:*")) - before
    assert all(farm.redis().hget(key, "status") in (b"COMPLETED", b"ERROR") for key in left)
