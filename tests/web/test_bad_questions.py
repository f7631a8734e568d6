"""What is asked beside ``POST /request`` and has no good answer: jobs, results, routes, orders that are none; keys."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from ndif_models.settings import Settings
from ndif_web import auth
from tests import models
from tests.farm import Farm
from tests.sender import Sender, refusal
from tests.web.conftest import API_KEY

pytestmark = pytest.mark.usefixtures("nothing_is_lost")


@pytest.mark.parametrize("path", ["/response/{}", "/response/{}/log"])
@pytest.mark.parametrize("id", ["0" * 32, "x", "s-1", "..", "%00", "%ff%fe", "a" * 5000, "%ED%A0%80", "*", "x:1"])
def test_a_job_that_never_was(sender: Sender, path: str, id: str) -> None:
    sentence = refusal(sender.get(path.format(id)), 404 if id == ".." else 410, 414)
    assert sentence


def test_a_job_that_never_was_cannot_be_cancelled(sender: Sender) -> None:
    assert "no such job" in refusal(httpx.delete(f"{sender.url}/jobs/{'0' * 32}"), 410)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?expires=9999999999",
        "?signature=00",
        "?expires=9999999999&signature=00",
        "?expires=never&signature=00",
        "?expires=-1&signature=00",
        "?expires=1e9&signature=00",
        "?expires=" + "9" * 1000 + "&signature=00",
        "?expires=%C2%B2&signature=%ff",
        "?expires=9999999999&signature=%C3%A9",
    ],
)
def test_a_result_url_that_is_not_the_farms(sender: Sender, query: str) -> None:
    id = sender.submit()
    assert "not valid" in refusal(sender.get(f"/results/{id}{query}"), 403)


def test_the_signature_of_another_job(sender: Sender) -> None:
    mine, other = sender.submit(), sender.submit()
    url = sender.wait_for(mine, "COMPLETED")["data"]
    assert httpx.get(url).status_code == 200
    assert "not valid" in refusal(httpx.get(url.replace(mine, other)), 403)


def test_a_result_url_that_has_expired_is_replaced_by_a_fresh_poll(farm: Farm, sender: Sender) -> None:
    id = sender.submit()
    sender.wait_for(id, "COMPLETED")
    past = Settings(signing_key=farm.variables["NDIF_SIGNING_KEY"], url_ttl_s=-60)
    sentence = refusal(sender.get(f"/results/{id}?{auth.sign(id, past)}"), 403)
    assert "expired" in sentence and "again" in sentence
    assert "logits" in sender.values(id)


def test_a_good_url_of_a_job_that_is_gone(farm: Farm, sender: Sender) -> None:
    mine = Settings(signing_key=farm.variables["NDIF_SIGNING_KEY"])
    for id in ("0" * 32, "%00", "é"):
        refusal(sender.get(f"/results/{id}?{auth.sign(httpx.URL('/' + id).path[1:], mine)}"), 410)


@pytest.mark.parametrize("path", ["/", "/nothing", "/request/x", "/admin", "/v1/nothing", "/response/", "/%ff", "//x"])
def test_a_route_that_is_none(sender: Sender, path: str) -> None:
    refusal(httpx.get(sender.url + path), 404)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/request"),
        ("PUT", "/request"),
        ("POST", "/ping"),
        ("POST", "/status"),
        ("DELETE", "/response/x"),
        ("POST", "/response/x"),
        ("GET", "/jobs/x"),
        ("PATCH", "/admin/deployments"),
        ("NONSENSE", "/ping"),
    ],
)
def test_a_method_the_route_does_not_know(sender: Sender, method: str, path: str) -> None:
    answer = httpx.request(method, sender.url + path)
    refusal(answer, 405)
    assert answer.headers["allow"]


@pytest.mark.parametrize(
    "order",
    [
        None,
        [],
        "x",
        {},
        {"checkpoint": 5},
        {"checkpoint": ""},
        {"checkpoint": "../../etc"},
        {"checkpoint": "a/b\x00"},
        {"checkpoint": "a/b", "revision": "../x"},
        {"checkpoint": "a/b", "revision": None},
        {"checkpoint": "a/b", "task": "A B"},
        {"checkpoint": "a/b", "dtype": "float1"},
        {"checkpoint": "a/b", "replicas": 0},
        {"checkpoint": "a/b", "replicas": "many"},
        {"checkpoint": "a/b", "replicas": 1e400},
        {"checkpoint": "a/b", "surprise": 1},
    ],
)
def test_an_order_that_is_none(farm: Farm, sender: Sender, order: Any) -> None:
    text = json.dumps(order).encode()
    headers = {"content-type": "application/json"}
    refusal(httpx.post(f"{sender.url}/admin/deployments", content=text, headers=headers), 400, 404)
    assert len(farm.get("/admin/deployments")["deployments"]) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b'{"checkpoint":' + b"1" * 10_000 + b"}"])
def test_an_order_that_is_no_json(sender: Sender, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    refusal(httpx.post(f"{sender.url}/admin/deployments", content=content, headers=headers), 400)


def test_an_order_that_a_foreign_page_could_send(sender: Sender) -> None:
    refusal(httpx.post(f"{sender.url}/admin/deployments", data={"checkpoint": models.GPT2}), 400)


@pytest.mark.parametrize(
    "query", ["", "?queue=nothing", f"?queue={models.GPT2}&replica=none", "?queue=%00", "?replica=x"]
)
def test_an_eviction_of_what_is_not_there(sender: Sender, query: str) -> None:
    assert "is not deployed" in refusal(httpx.delete(f"{sender.url}/admin/deployments{query}"), 404)


# Keys


def test_no_key_where_one_is_needed(strict: Sender) -> None:
    nobody = replace(strict, headers={})
    assert "NDIF_API_KEY" in refusal(nobody.post(), 401)
    for path in ("/response/x", "/response/x/log", "/admin/deployments"):
        refusal(nobody.get(path), 401)


@pytest.mark.parametrize("key", ["wrong", API_KEY + "x", API_KEY[:-1], API_KEY.upper(), "\u00e9"])
def test_a_key_that_is_not_known(strict: Sender, key: str) -> None:
    stranger = replace(strict, headers={"ndif-api-key": key.encode("latin-1")})  # type: ignore[dict-item]
    assert "does not know" in refusal(stranger.post(), 403)
    refusal(httpx.delete(f"{strict.url}/jobs/x", headers=stranger.headers), 403)
