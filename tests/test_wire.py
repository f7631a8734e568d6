"""The envelope, the updates and the binary frame, as nnsight's own schema reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndif_models.errors import BadRequest
from ndif_models.wire import Envelope, Status, Update, check_payload, completed_frame

KEY = 'nnsight.modeling.transformers.TransformersModel:{"repo_id": "a/b"}'


def test_what_nnsight_writes_is_read(client: Any) -> None:
    from nnsight.schema.request import RequestModel

    sent = RequestModel(model_key=KEY, session_id="s-1", compress=True, env={"attn_implementation": "eager"})
    read = Envelope.parse(sent.metadata())
    assert (read.model_key, read.session_id, read.compress) == (KEY, "s-1", True)
    assert read.env.model_dump(exclude_none=True) == {"attn_implementation": "eager"}


def test_an_unknown_name_in_env_is_kept() -> None:
    read = Envelope.parse(json.dumps({"model_key": KEY, "env": {"later": [1]}}))
    assert read.env.model_dump(exclude_none=True) == {"later": [1]}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("[]", "it must be a JSON object"),
        ("null", "it must be a JSON object"),
        ("[" * 30_000, "it is not JSON"),
        ("[" * 100_000, "it is longer than 32000 characters"),
        ("{}", "`model_key`: field required"),
        ('{"model_key": 1}', "`model_key`: input should be a valid string"),
        ('{"model_key": "k", "compress": "yes"}', "`compress`: input should be a valid boolean"),
        ('{"model_key": "k", "id": "x"}', "`id` is not a field that a client may set"),
        ('{"model_key": "k", "env": {"peft": 1}}', "`env.peft`: input should be a valid string"),
    ],
)
def test_a_wrong_envelope_is_refused_in_one_sentence(data: str, sentence: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        Envelope.parse(data)
    assert str(refusal.value) == f"The request's `data` field is not valid: {sentence}."


@given(st.text())
def test_any_text_is_an_envelope_or_a_sentence(text: str) -> None:
    with pytest.raises(BadRequest):
        Envelope.parse(text)


@pytest.mark.parametrize("status", Status)
def test_an_update_is_what_the_client_parses(client: Any, status: Status) -> None:
    from nnsight.schema.response import ResponseModel

    ours = Update(id="j", status=status, description="é\n", data="http://x", meta={"runtime": 1.5})
    theirs = ResponseModel.model_validate_json(ours.model_dump_json())
    assert json.loads(theirs.model_dump_json()) == json.loads(ours.model_dump_json())


@given(st.binary(max_size=4096), st.text(max_size=200))
def test_the_frame_is_what_the_client_unpickles(client: Any, result: bytes, description: str) -> None:
    from nnsight.schema.response import ResponseModel

    meta: dict[str, Any] = {"runtime": 0.25, "max_mem_by_gpu": {"0": 1}}
    frame = completed_frame(Update(id="j", status=Status.COMPLETED, description=description, meta=meta), result)
    read = ResponseModel.unpickle(frame)
    assert (read.id, read.status.value, read.description, read.data, read.meta) == (
        "j",
        "COMPLETED",
        description,
        result,
        meta,
    )


@pytest.mark.parametrize(
    ("head", "compress"),
    [(b"", True), (b"", False), (b"\x80\x04..", True), (b"\x28\xb5\x2f\xfd", False), (b"PK", False)],
)
def test_a_blob_that_is_not_what_the_envelope_says_is_refused(head: bytes, compress: bool) -> None:
    with pytest.raises(BadRequest):
        check_payload(head, compress)


def test_both_kinds_of_payload_pass() -> None:
    check_payload(b"\x28\xb5\x2f\xfd", True)
    check_payload(b"\x80\x04\x95", False)
