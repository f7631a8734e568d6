"""What a web tier is sent that it cannot serve: a 4xx in JSON with one sentence, and nothing is lost by it."""

from __future__ import annotations

import io
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import zstandard

from tests import models
from tests.sender import Sender, refusal
from tests.web.conftest import API_KEY, MAX_REQUEST_BYTES

pytestmark = pytest.mark.usefixtures("nothing_is_lost")

CLASS = "nnsight.modeling.transformers.TransformersModel"
EMPTY_PICKLE = b"\x80\x04]."


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
