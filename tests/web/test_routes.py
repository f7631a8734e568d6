"""What the web tier tells, and what it does to jobs: cancel, time, places in line, printed lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
import websocket

from ndif_models.wire import TERMINAL
from tests import blocks, models
from tests.farm import Farm
from tests.sender import Sender, record, refusal


def test_ping(farm: Farm) -> None:
    assert farm.get("/ping") == "pong"


def test_connected(farm: Farm) -> None:
    assert httpx.get(f"{farm.url}/connected").status_code == 200
    head = httpx.head(f"{farm.url}/connected")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", ["/ping", "/status", "/response/x", "/nothing"])
def test_any_page_may_read_any_answer_and_sends_no_credentials(farm: Farm, path: str) -> None:
    headers = httpx.get(farm.url + path, headers={"origin": "http://elsewhere"}).headers
    assert headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/request"), ("POST", "/admin/deployments"), ("DELETE", "/jobs/x")]
)
def test_a_page_of_another_site_only_reads_where_no_key_is_asked_for(farm: Farm, method: str, path: str) -> None:
    answer = httpx.request(method, farm.url + path, headers={"origin": "http://elsewhere"}, json={})
    assert "may only read" in refusal(answer, 403)


def test_a_name_that_a_stranger_points_at_this_machine_is_another_site(farm: Farm) -> None:
    port = farm.url.rpartition(":")[2]
    for host, status in ((f"evil.example:{port}", 403), (f"127.0.0.1:{port}", 404), (f"localhost:{port}", 404)):
        answer = httpx.post(f"{farm.url}/nothing", headers={"host": host, "origin": f"http://{host}"})
        assert answer.status_code == status, answer.text


def test_what_is_no_handshake_is_refused(farm: Farm) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    assert "handshake" in refusal(httpx.get(f"{farm.url}/subscribe", headers=headers), 400)


def test_two_slashes_are_no_route(farm: Farm) -> None:
    refusal(httpx.get(f"{farm.url}/hub//x"), 404)


def test_status_has_an_entry_for_each_replica(farm: Farm) -> None:
    answer = farm.get("/status")
    assert set(answer) == {"deployments", "cluster"}
    assert list(answer["cluster"]["nodes"]) == ["test"]
    for repo_id in (models.GPT2, models.LLAMA):
        (entry,) = farm.replicas(repo_id)
        assert answer["deployments"][entry["replica_id"]]["repo_id"] == repo_id
        expected = {"deployment_level": "HOT", "application_state": "RUNNING", "task": "text-generation"}
        expected |= {"revision": "main", "trust_remote_code": False, "dtype": "float32", "threads": 2, "pinned": False}
        assert expected.items() <= entry.items()
        assert entry["model_key"].startswith("nnsight.modeling.transformers.TransformersModel:{")
        assert entry["n_params"] > 0 and entry["size_bytes"] >= 4 * entry["n_params"]
        assert entry["config"]["architectures"] and entry["gpus"] == [] and entry["schedule"] is None


def test_nnsight_reads_the_status(farm: Farm, client: Any) -> None:
    assert models.GPT2 in client.status()
    assert "RUNNING" in str(client.status())
    assert client.is_model_running(models.LLAMA)
    assert not client.is_model_running(models.GPT2, revision="other")


def test_nnsight_compares_its_environment(farm: Farm, client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    told = farm.get("/env")
    assert set(told) == {"python_version", "packages"}
    assert {"torch", "nnsight", "transformers"} <= set(told["packages"])
    print(client.compare())
    assert "torch" in capsys.readouterr().out


def test_whoami_in_dev_mode(client: Any, sender: Sender) -> None:
    assert client.ndif.whoami("any-key")["email"] == "developer@localhost"
    assert sender.get("/whoami").json() == {"email": None, "tags": []}


def test_whoami_where_a_key_is_needed(strict: Sender) -> None:
    assert strict.get("/whoami").json()["email"] == "developer@localhost"
    for headers in ({}, {"ndif-api-key": "wrong"}):
        answer = replace(strict, headers=headers).get("/whoami")
        assert (answer.status_code, answer.json()) == (200, {"email": None, "tags": []})


def test_a_known_key_is_served(strict: Sender) -> None:
    assert "logits" in strict.values(strict.submit())


def test_a_cancelled_running_job_ends_and_the_next_is_served(sender: Sender, busy: str) -> None:
    following = sender.submit()
    assert sender.cancel(busy)
    over = sender.wait_for(busy, "ERROR", timeout_s=10)
    assert over["description"].startswith("The job was cancelled.")
    assert over["meta"]["runtime"] > 0 and over["meta"]["max_memory_usage"] > 0
    assert "logits" in sender.values(following)
    assert not sender.cancel(busy)


def test_a_cancelled_waiting_job_ends_at_once(sender: Sender, busy: str) -> None:
    waiting = sender.submit()
    assert sender.status(waiting)["status"] == "QUEUED"
    assert sender.cancel(waiting)
    assert sender.status(waiting)["description"] == "The job was cancelled."
    assert sender.status(busy)["status"] == "RUNNING"


def test_a_finished_job_is_not_cancelled(sender: Sender) -> None:
    id = sender.submit()
    sender.wait_for(id, "COMPLETED")
    assert not sender.cancel(id)
    assert sender.status(id)["status"] == "COMPLETED"


def test_a_job_of_another_owner_is_none(sender: Sender, strict: Sender, farm: Farm) -> None:
    id = sender.submit()
    farm.redis().hset(f"ndif:job:{id}", "owner", "somebody else")
    for answer in (sender.get(f"/response/{id}"), sender.get(f"/response/{id}/log")):
        assert "no such job" in refusal(answer, 410)
    assert "no such job" in refusal(httpx.delete(f"{sender.url}/jobs/{id}"), 410)


def test_places_in_line_are_told_when_they_change(sender: Sender, busy: str) -> None:
    lines: list[Waiting] = [Waiting(sender) for _ in range(3)]
    for line, position in zip(lines, (1, 2, 3), strict=True):
        assert line.next()["description"].startswith(f"Position {position} in the queue.")
    assert sender.cancel(lines[0].id)
    assert lines[0].rest() == ["ERROR"]
    for line, position in zip(lines[1:], (1, 2), strict=True):
        told = line.next()
        while told["description"].startswith(f"Position {position + 1} in the queue. About"):
            told = line.next()
        assert told["status"] == "QUEUED" and told["description"].startswith(f"Position {position} in the queue.")
    assert sender.status(lines[2].id)["description"].startswith("Position 2 in the queue.")
    assert sender.cancel(busy)
    for line in lines[1:]:
        assert line.rest()[-1] == "COMPLETED"


class Waiting:
    """A client that sent a good request and listens, as nnsight does."""

    def __init__(self, sender: Sender) -> None:
        self._socket = websocket.create_connection(f"ws{sender.url.removeprefix('http')}/subscribe", timeout=60)
        session = json.loads(self._socket.recv())["session_id"]
        self.id = sender.submit(session_id=session)

    def next(self) -> dict[str, Any]:
        """The next update."""
        message = self._socket.recv()
        if isinstance(message, bytes):
            from nnsight.schema.response import ResponseModel

            return {"status": ResponseModel.unpickle(message).status.value}
        return dict(json.loads(message))

    def rest(self) -> list[str]:
        """Every further status, to the last; the connection is closed behind it."""
        statuses = []
        while not statuses or statuses[-1] not in TERMINAL:
            statuses.append(self.next()["status"])
        self._socket.close()
        return statuses


def test_every_update_comes_in_order_and_once(sender: Sender) -> None:
    statuses = Waiting(sender).rest()
    assert statuses == ["QUEUED", "DISPATCHED", "RUNNING", "COMPLETED"]


def test_printed_lines_can_be_read_afterwards(client: Any, sender: Sender, remote_model: Callable[[str], Any]) -> None:
    model = remote_model(models.GPT2)
    with model.trace("The farm answers", remote=True, blocking=False) as tracer:
        for number in range(3):
            print("line", number)
        logits = model.lm_head.output.save()  # noqa: F841
    id = tracer.backend.job_id
    done = sender.wait_for(id, "COMPLETED")
    assert sender.lines(id) == ["line 0", "line 1", "line 2"]
    assert f"/response/{id}/log" in done["description"]
    assert "logits" in tracer.backend()


def test_lines_of_a_job_with_a_session_can_be_read_too(sender: Sender, remote_model: Callable[[str], Any]) -> None:
    noisy = sender.with_blob(record(remote_model(models.GPT2), blocks.noisy))
    waiting = Waiting(noisy)
    assert waiting.rest().count("LOG") == 3
    assert noisy.lines(waiting.id) == ["line 0", "line 1", "line 2"]
