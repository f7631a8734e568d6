"""What a web tier is sent that it cannot serve: a 4xx in JSON with one sentence, and nothing is lost by it."""

from __future__ import annotations

import io
import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import websocket
import zstandard

from ndif_models.settings import Settings
from ndif_web import auth
from tests import models
from tests.farm import Farm, wait_until
from tests.sender import Sender, refusal
from tests.web.conftest import API_KEY, MAX_REQUEST_BYTES

CLASS = "nnsight.modeling.transformers.TransformersModel"
EMPTY_PICKLE = b"\x80\x04]."


@pytest.fixture(scope="module", autouse=True)
def nothing_is_lost(farm: Farm, sender: Sender, api_pid: int) -> Iterator[None]:
    """After all of it a good trace still works, in the same web tier, and the broker holds no refused job."""
    before = set(farm.redis().scan_iter("ndif:job:*"))
    yield
    id = sender.submit()
    assert "logits" in sender.values(id)
    assert farm.service_pid("api") == api_pid
    left = set(farm.redis().scan_iter("ndif:job:*")) - before
    assert all(farm.redis().hget(key, "status") in (b"COMPLETED", b"ERROR") for key in left)


# The envelope


def test_a_body_that_is_no_form(sender: Sender) -> None:
    for kwargs in ({"content": b"{}"}, {"json": {}}, {"data": {"data": "{}"}}, {}):
        answer = httpx.post(f"{sender.url}/request", **kwargs)  # type: ignore[arg-type]
        assert "multipart/form-data" in refusal(answer, 400)


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=é", "multipart"]
)
def test_a_form_that_cannot_be_parsed(sender: Sender, kind: str) -> None:
    headers = {"content-type": kind.encode()}
    refusal(httpx.post(f"{sender.url}/request", content=b"--x\r\nhello", headers=headers), 400)  # type: ignore[arg-type]


def test_a_form_that_ends_early(sender: Sender) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="data"\r\n\r\n{"model'
    headers = {"content-type": "multipart/form-data; boundary=x"}
    refusal(httpx.post(f"{sender.url}/request", content=body, headers=headers), 400)


def test_a_form_of_too_many_parts(sender: Sender) -> None:
    refusal(sender.send_form({f"field{n}": "x" for n in range(1000)}, sender.blob), 413)


def test_a_missing_data_field(sender: Sender) -> None:
    assert "no field `data`" in refusal(sender.send_form({}, sender.blob), 400)


def test_a_missing_blob(sender: Sender) -> None:
    assert "no file `blob`" in refusal(sender.send_form({"data": sender.envelope()}, None), 400)


def test_a_blob_that_is_a_field_and_no_file(sender: Sender) -> None:
    assert "no file `blob`" in refusal(sender.send_form({"data": sender.envelope(), "blob": "x"}, None), 400)


@pytest.mark.parametrize(
    "data", ["", "nonsense", "{", "[]", "null", '"text"', b"\xff\xfe\x00", "[" * 50_000, '{"a":' * 20_000, "\x00"]
)
def test_data_that_is_no_json_object(sender: Sender, data: str | bytes) -> None:
    assert "`data` field is not valid" in refusal(sender.post(data), 400)


def test_a_missing_field(sender: Sender) -> None:
    assert "`model_key`: field required" in refusal(sender.post('{"session_id": ""}'), 400)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_key", 5),
        ("model_key", None),
        ("model_key", ["x"]),
        ("model_key", "x" * 3000),
        ("session_id", 5),
        ("session_id", None),
        ("session_id", "x" * 500),
        ("compress", "true"),
        ("compress", 1),
        ("compress", None),
        ("env", []),
        ("env", "x"),
        ("env", None),
        ("env", {"peft": 5}),
        ("env", {"peft": ["x"]}),
        ("env", {"attn_implementation": {}}),
        ("env", {"attn_implementation": "x; rm"}),
    ],
)
def test_a_field_of_a_wrong_type(sender: Sender, field: str, value: Any) -> None:
    assert f"`{field}" in refusal(sender.post(sender.envelope(**{field: value})), 400)


@pytest.mark.parametrize("field", ["id", "trusted", "priority", "enqueued_at", "owner", "surprise"])
def test_a_field_that_is_the_servers(sender: Sender, field: str) -> None:
    sentence = refusal(sender.post(sender.envelope(**{field: "x"})), 400)
    assert f"`{field}` is not a field that a client may set" in sentence


def test_a_data_field_of_a_megabyte(sender: Sender) -> None:
    refusal(sender.post(sender.envelope(env={"x": "y" * 2**20})), 413)


# The model


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("", "import.path.Class"),
        ("gpt2", "import.path.Class"),
        ('os.system:{"repo_id": "a/b"}', "does not serve; it serves"),
        ('builtins.eval:{"repo_id": "a/b"}', "does not serve; it serves"),
        (f"{CLASS}:", "not JSON"),
        (f"{CLASS}:{{", "not JSON"),
        (f"{CLASS}:" + "[" * 1900, "not JSON"),
        (f"{CLASS}:[]", "must hold repo_id"),
        (f"{CLASS}:{{}}", "must hold repo_id"),
        (f'{CLASS}:{{"repo_id": null}}', "must hold repo_id"),
        (f'{CLASS}:{{"repo_id": "a/b", "dtype": "x"}}', "may hold only"),
        (f'{CLASS}:{{"repo_id": 5}}', "repo_id"),
        (f'{CLASS}:{{"repo_id": "../../etc/passwd"}}', "repo_id"),
        (f'{CLASS}:{{"repo_id": "a/b/c"}}', "repo_id"),
        (f'{CLASS}:{{"repo_id": "a\\u0000b"}}', "repo_id"),
        (f'{CLASS}:{{"repo_id": "\\ud800"}}', "repo_id"),
        (f'{CLASS}:{{"repo_id": "a/b", "revision": {{}}}}', "revision"),
        (f'{CLASS}:{{"repo_id": "a/b", "revision": "../x"}}', "revision"),
        (f'{CLASS}:{{"repo_id": "a/b", "task": "a b"}}', "task"),
        (f'{CLASS}:{{"repo_id": "a/b", "trust_remote_code": "yes"}}', "trust_remote_code"),
    ],
)
def test_a_key_of_no_model(sender: Sender, key: str, part: str) -> None:
    assert part in refusal(sender.post(sender.envelope(model_key=key)), 400)


@pytest.mark.parametrize(
    "more", ["", ', "revision": "other"', ', "task": "text-classification"', ', "trust_remote_code": true']
)
def test_a_model_nobody_deployed(sender: Sender, more: str) -> None:
    repo_id = models.GPT2 if more else "nobody/deployed-this"
    sentence = refusal(sender.post(sender.envelope(model_key=f'{CLASS}:{{"repo_id": "{repo_id}"{more}}}')), 404)
    assert "is not deployed on this farm" in sentence
    assert models.GPT2 in sentence and models.LLAMA in sentence


@pytest.mark.parametrize("peft", ["nobody/holds-this", "../../etc", "x\x00y", models.GPT2, "é", "tiny-gpt2-lora"])
def test_an_adapter_that_is_not_held(sender: Sender, peft: str) -> None:
    refusal(sender.post(sender.envelope(env={"peft": peft})), 404)


# The client


@pytest.mark.parametrize("version", ["0.7.0", "0.9.0", "0.5.15", "1!0.8", "garbage", "0.8.x", "\u00a08", "8" * 1000])
def test_a_client_of_another_version(sender: Sender, version: str) -> None:
    sentence = refusal(sender.post(headers={"nnsight-version": version.encode()}), 400)
    assert "0.8" in sentence and "<0.9" in sentence
    assert version[:40] in sentence or not version.isascii()


@pytest.mark.parametrize("version", ["0.8.0", "0.8.1", "0.8.2.dev1", "0.8.99"])
def test_a_client_of_a_version_that_fits(sender: Sender, version: str) -> None:
    assert sender.post(headers={"nnsight-version": version}).status_code == 200


def test_headers_that_say_nothing(sender: Sender) -> None:
    odd = {"ndif-timestamp": "yesterday", "python-version": b"\xff\xfe", "ndif-api-key": b"\xe9" * 100}
    assert sender.post(headers=odd).status_code == 200


# The session


def test_a_session_that_never_was(sender: Sender) -> None:
    for session in ("s-" + 64 * "0", "x", "\x00", "é"):
        assert "subscribe again" in refusal(sender.post(sender.envelope(session_id=session)), 403)


def test_a_session_of_somebody_else(strict: Sender) -> None:
    stranger, session = subscribed(strict.url)
    try:
        assert "subscribe again" in refusal(strict.post(strict.envelope(session_id=session)), 403)
    finally:
        stranger.close()


def test_a_session_with_a_letter_changed(sender: Sender) -> None:
    opened, session = subscribed(sender.url)
    for place in (5, -1):
        changed = list(session)
        changed[place] = "1" if changed[place] == "0" else "0"
        assert "subscribe again" in refusal(sender.post(sender.envelope(session_id="".join(changed))), 403)
    assert sender.post(sender.envelope(session_id=session)).status_code == 200
    opened.close()


def test_a_session_that_is_closed(sender: Sender) -> None:
    opened, session = subscribed(sender.url)
    opened.close()

    def refused() -> bool:
        return sender.post(sender.envelope(session_id=session)).status_code == 403

    wait_until(refused, what="the session to be closed")


def subscribed(url: str, **headers: str) -> tuple[websocket.WebSocket, str]:
    opened = websocket.create_connection(f"ws{url.removeprefix('http')}/subscribe", header=headers, timeout=30)
    return opened, json.loads(opened.recv())["session_id"]


def test_what_a_client_says_on_its_socket_is_not_heard(sender: Sender) -> None:
    opened, session = subscribed(sender.url)
    opened.send("nonsense")
    opened.send_binary(b"\x80\x04" * 1000)
    sender.submit(session_id=session)
    assert json.loads(opened.recv())["status"] == "QUEUED"
    opened.close()


def test_a_subscription_that_is_no_websocket(sender: Sender) -> None:
    refusal(sender.get("/subscribe"))


# The blob


def compressed(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def bomb(claimed: int) -> bytes:
    """One zstd frame whose header claims a size and whose one block repeats a byte."""
    header = b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", claimed)
    return header + ((128 * 1024 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\x00")


@pytest.mark.parametrize("compress", [True, False])
def test_an_empty_blob(sender: Sender, compress: bool) -> None:
    assert "empty" in refusal(sender.post(sender.envelope(compress=compress), b""), 400)


@pytest.mark.parametrize("blob", [b"x", b"\x80", EMPTY_PICKLE, b"\x28\xb5", b"PK\x03\x04" * 100])
def test_a_blob_that_is_not_zstd(sender: Sender, blob: bytes) -> None:
    assert "not zstd" in refusal(sender.post(blob=blob), 400)


@pytest.mark.parametrize("blob", [b"x", b"hello" * 100, compressed(EMPTY_PICKLE)])
def test_a_blob_that_is_no_pickle(sender: Sender, blob: bytes) -> None:
    assert "not a payload" in refusal(sender.post(sender.envelope(compress=False), blob), 400)


def cut(blob: bytes) -> bytes:
    return blob[: len(blob) // 2]


BROKEN = {
    "truncated zstd": (True, cut),
    "garbage after the magic of zstd": (True, lambda _: b"\x28\xb5\x2f\xfd" + b"garbage" * 50),
    "the magic of zstd alone": (True, lambda _: b"\x28\xb5\x2f\xfd"),
    "a frame that claims 4 EiB": (True, lambda _: bomb(2**62)),
    "a frame that claims 1 TiB": (True, lambda _: bomb(2**40)),
    "zstd of garbage": (True, lambda _: compressed(b"garbage" * 50)),
    "zstd of nothing": (True, lambda _: compressed(b"")),
    "zstd of another pickle": (True, lambda _: compressed(EMPTY_PICKLE)),
    "a pickle that ends early": (False, lambda _: b"\x80\x04\x95"),
    "a pickle of something else": (False, lambda _: EMPTY_PICKLE),
    "garbage after the magic of pickle": (False, lambda _: b"\x80" + b"\xff" * 200),
    "a pickle that calls exit": (False, lambda _: b"\x80\x04cos\n_exit\n(I3\ntR."),
    "a pickle of depth": (False, lambda _: b"\x80\x04" + b"(" * 100_000 + b"t" * 100_000 + b"."),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_blob_that_only_a_runner_can_judge_ends_its_job_with_a_sentence(sender: Sender, name: str) -> None:
    compress, make = BROKEN[name]
    answer = sender.post(sender.envelope(compress=compress), make(sender.blob))
    assert answer.status_code == 200, answer.text
    over = sender.wait_for(answer.json()["id"], "ERROR")
    assert over["description"] and "ndif_tasks" not in over["description"], over
    assert "\n" not in over["description"], over


# Sizes


def test_a_body_over_the_limit_with_its_length_told(strict: Sender) -> None:
    answer = strict.post(blob=strict.blob + b"\0" * MAX_REQUEST_BYTES)
    assert "NDIF_MAX_REQUEST_BYTES" in refusal(answer, 413)


def test_a_body_over_the_limit_in_chunks_is_refused_while_it_comes(strict: Sender) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield b'--x\r\nContent-Disposition: form-data; name="blob"; filename="b"\r\n\r\n'
        while sent < 1000 * MAX_REQUEST_BYTES:
            sent += 2**16
            yield b"\0" * 2**16

    headers = {**strict.headers, "content-type": "multipart/form-data; boundary=x"}
    try:
        answer = httpx.post(f"{strict.url}/request", content=endless(), headers=headers, timeout=60)
        assert "NDIF_MAX_REQUEST_BYTES" in refusal(answer, 413)
    except httpx.TransportError:  # refused and hung up on before the client looked
        assert sent < 1000 * MAX_REQUEST_BYTES
    assert "NDIF_MAX_REQUEST_BYTES" in refusal(strict.post(blob=b"\0" * 2 * MAX_REQUEST_BYTES), 413)


def test_a_length_over_the_limit_is_refused_before_the_body(strict: Sender) -> None:
    head = ["Content-Type: multipart/form-data; boundary=x", f"Content-Length: {2**40}", f"ndif-api-key: {API_KEY}"]
    status, sentence = raw(strict.url, "POST /request HTTP/1.1", *head)
    assert (status, "NDIF_MAX_REQUEST_BYTES" in sentence) == (413, True)


def test_a_field_that_is_too_long_is_not_called_a_large_request(sender: Sender) -> None:
    sentence = refusal(sender.post("x" * 2**20), 413)
    assert "too long" in sentence and "NDIF_MAX_REQUEST_BYTES" not in sentence


def test_a_body_below_the_limit_is_taken(strict: Sender) -> None:
    assert strict.post().status_code == 200


# HTTP itself


def raw(url: str, first: str, *headers: str, body: bytes = b"") -> tuple[int, str]:
    """Send bytes as they are; the status and the sentence of the answer."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port or 80), 30) as connection:
        connection.sendall("\r\n".join([first, "Host: farm", *headers, "", ""]).encode("latin-1") + body)
        answer = io.BytesIO()
        while b"\r\n\r\n" not in answer.getvalue() or not answer.getvalue().endswith(b"}\n"):
            data = connection.recv(65536)
            if not data:
                break
            answer.write(data)
    head, _, text = answer.getvalue().partition(b"\r\n\r\n")
    assert b"application/json" in head, answer.getvalue()
    return int(head.split()[1]), json.loads(text)["detail"]


@pytest.mark.parametrize(
    ("first", "headers", "expected"),
    [
        ("GET /ping HTTP/1.1", ["X-Big: " + "x" * 100_000], 431),
        ("GET /ping HTTP/1.1", [f"X-{n}: x" for n in range(500)], 431),
        ("GET /" + "x" * 100_000 + " HTTP/1.1", [], 414),
        ("nonsense", [], 400),
        ("GET /ping HTTP/9.9", [], 400),
        ("GET /ping HTTP/1.1", ["no colon here"], 400),
        ("GET /ping HTTP/1.1", ["Bad Name: x"], 400),
        ("POST /request HTTP/1.1", ["Content-Length: -5"], 400),
        ("POST /request HTTP/1.1", ["Content-Length: many"], 400),
        ("POST /request HTTP/1.1", ["Transfer-Encoding: chunked", "Content-Length: 5"], 400),
        ("POST /request HTTP/1.1", ["Transfer-Encoding: sideways"], 400),
    ],
)
def test_what_is_not_http_as_it_should_be(sender: Sender, first: str, headers: list[str], expected: int) -> None:
    status, sentence = raw(sender.url, first, *headers)
    assert status == expected
    assert sentence.endswith(".") and "\n" not in sentence


def test_chunks_that_lie(sender: Sender) -> None:
    head = ["Transfer-Encoding: chunked", "Content-Type: multipart/form-data; boundary=x"]
    status, _ = raw(sender.url, "POST /request HTTP/1.1", *head, body=b"zz\r\nhello\r\n")
    assert status == 400


def test_a_client_that_leaves_while_it_sends(sender: Sender) -> None:
    parts = urlsplit(sender.url)
    for _ in range(3):
        with socket.create_connection((parts.hostname, parts.port or 80), 30) as connection:
            connection.sendall(
                b"POST /request HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
                b"Content-Length: 100000\r\n\r\n--x\r\n"
            )


# Other routes


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
