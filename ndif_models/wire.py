"""What travels between nnsight clients and the farm, as our own types (facts: nnsight 0.8's ``schema``).

Owns the request envelope, the status message, and the binary COMPLETED frame. Must not import torch: the
frame is the zip layout of ``torch.save``, written by hand around one plain pickle.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import BadRequest

#: Far more than a key and an environment take, and little enough for every step behind.
MAX_ENVELOPE_CHARS = 32_000
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
PICKLE_MAGIC = b"\x80"


class Status(StrEnum):
    """Where a job is; LOG is a printed line and no stage."""

    RECEIVED = "RECEIVED"
    QUEUED = "QUEUED"
    PROVISIONING = "PROVISIONING"
    DEPLOYING = "DEPLOYING"
    DISPATCHED = "DISPATCHED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    LOG = "LOG"


TERMINAL = frozenset({Status.COMPLETED, Status.ERROR})


class Environment(BaseModel):
    """What a request asks of the model before it runs; unknown names are nnsight's to judge."""

    model_config = ConfigDict(extra="allow", strict=True)

    attn_implementation: str | None = Field(default=None, max_length=64, pattern=r"^[A-Za-z0-9_.|/:-]*$")
    peft: str | None = Field(default=None, max_length=200)


class Envelope(BaseModel):
    """The JSON beside a payload: which model, which session, how the payload is packed."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    model_key: str = Field(max_length=2000)
    session_id: str = Field(default="", max_length=100)
    compress: bool = False
    env: Environment = Environment()

    @classmethod
    def parse(cls, text: str) -> Envelope:
        """Read the ``data`` field of a request.

        Raises:
            BadRequest: naming the first field that is wrong.
        """
        if len(text) > MAX_ENVELOPE_CHARS:
            raise BadRequest(
                f"The request's `data` field is not valid: it is longer than {MAX_ENVELOPE_CHARS} characters."
            )
        try:
            return cls.model_validate_json(text)
        except (ValidationError, RecursionError) as error:
            raise BadRequest(f"The request's `data` field is not valid: {_first_problem(error)}.") from None


class Update(BaseModel):
    """One status message, as clients parse it."""

    id: str
    status: Status
    description: str = ""
    data: str | None = None
    meta: dict[str, Any] | None = None


def completed_frame(update: Update, result: bytes) -> bytes:
    """The binary COMPLETED frame: what ``torch.save`` of the update with ``result`` as its data would hold.

    Args:
        update: the COMPLETED update.
        result: the result's bytes, as the client will load them.
    """
    fields = {**update.model_dump(mode="json"), "data": result}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("frame/data.pkl", pickle.dumps(fields, protocol=4))
        archive.writestr("frame/byteorder", "little")
        archive.writestr("frame/version", "3\n")
    return buffer.getvalue()


def check_payload(head: bytes, compress: bool) -> None:
    """Refuse a blob whose first bytes are not what the envelope says.

    Raises:
        BadRequest: it is empty, not zstd though ``compress`` is true, or no pickle though it is false.
    """
    if not head:
        raise BadRequest("The request's `blob` is empty.")
    if compress and not head.startswith(ZSTD_MAGIC):
        raise BadRequest("The request says `compress` but its blob is not zstd.")
    if not compress and not head.startswith(PICKLE_MAGIC):
        raise BadRequest("The request's blob is not a payload as nnsight writes it.")


def _first_problem(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "it is nested too deep"
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part)[:80] for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"`{where}` is not a field that a client may set"
    if problem["type"] == "json_invalid":
        return "it is not JSON"
    return f"`{where}`: {problem['msg'][:1].lower()}{problem['msg'][1:]}" if where else "it must be a JSON object"


def dumps(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"))
