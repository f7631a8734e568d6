"""Jobs sent with plain HTTP: payloads recorded from real traces, for tests that must see every answer themselves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from tests.farm import wait_until

Block = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Sender:
    """Sends one recorded payload to one web tier, as often as asked."""

    url: str
    model_key: str
    blob: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def envelope(self, **fields: Any) -> str:
        """The ``data`` field of a good request, with fields changed."""
        good = {"model_key": self.model_key, "session_id": "", "compress": True, "env": {}}
        return json.dumps(good | fields)

    def post(self, data: str | bytes | None = None, blob: bytes | None = None, **kwargs: Any) -> httpx.Response:
        """POST a request; good unless told otherwise."""
        return self.send_form(
            {"data": data if data is not None else self.envelope()}, self.blob if blob is None else blob, **kwargs
        )

    def send_form(self, form: dict[str, Any], blob: bytes | None, **kwargs: Any) -> httpx.Response:
        """POST a form; without its blob when that is None."""
        headers = self.headers | kwargs.pop("headers", {})
        files = {name: (None, value) for name, value in form.items()}
        if blob is not None:
            files["blob"] = ("request", blob)  # type: ignore[assignment]
        return httpx.post(f"{self.url}/request", files=files, headers=headers, timeout=60, **kwargs)

    def submit(self, **fields: Any) -> str:
        """Send a good request; its id."""
        answer = self.post(self.envelope(**fields))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def with_blob(self, blob: bytes) -> Sender:
        """The same sender with another payload."""
        return replace(self, blob=blob)

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        """GET with the sender's headers."""
        return httpx.get(f"{self.url}{path}", headers=self.headers, timeout=30, **kwargs)

    def cancel(self, id: str) -> bool:
        """Cancel a job; whether it was not over yet."""
        answer = httpx.delete(f"{self.url}/jobs/{id}", headers=self.headers, timeout=30)
        assert answer.status_code == 200 and answer.json()["id"] == id, answer.text
        return bool(answer.json()["cancelled"])

    def status(self, id: str) -> dict[str, Any]:
        """The latest status of a job."""
        answer = self.get(f"/response/{id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def wait_for(self, id: str, *statuses: str, timeout_s: float = 180) -> dict[str, Any]:
        """The status of a job once it is one of these; a job over otherwise fails the test."""

        def reached() -> dict[str, Any] | None:
            now = self.status(id)
            over = now["status"] in ("COMPLETED", "ERROR")
            assert now["status"] in statuses or not over, now
            return now if now["status"] in statuses else None

        return dict(wait_until(reached, timeout_s, f"{id} to be {statuses}"))

    def lines(self, id: str) -> list[str]:
        """The lines a job printed."""
        return list(self.get(f"/response/{id}/log").json()["lines"])

    def wait_printed(self, id: str, line: str) -> None:
        """Return once a job has printed a line: its block runs."""
        wait_until(lambda: line in self.lines(id), 120, f"{id} to print {line!r}")

    def body(self, id: str) -> bytes:
        """The result of a job as it is, once it has completed."""
        body = httpx.get(self.wait_for(id, "COMPLETED")["data"], follow_redirects=True, timeout=60)
        body.raise_for_status()
        return body.content

    def values(self, id: str) -> dict[str, Any]:
        """The saved values of a job, once it has completed."""
        return unpacked(self.body(id))


def unpacked(body: bytes) -> dict[str, Any]:
    """A result as the client reads it."""
    import torch
    import zstandard

    content = zstandard.ZstdDecompressor().decompress(body)
    return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=False))


def record(model: Any, block: Block) -> bytes:
    """The payload an unmodified client would send for a block; ``block`` opens its trace with the backend given."""
    from nnsight.intervention.backends.remote import RemoteBackend

    class Recorder(RemoteBackend):
        blob = b""

        def __call__(self, tracer: Any = None) -> None:
            self.blob = self._serialize(tracer)

    recorder = Recorder(model.to_model_key())
    recorder.compress = True
    block(model, recorder)
    return recorder.blob


def refusal(answer: httpx.Response, *statuses: int) -> str:
    """The one sentence of a refusal, checked to be nothing else."""
    assert answer.status_code in (statuses or range(400, 500)), (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/json", answer.text
    assert list(answer.json()) == ["detail"]
    sentence = answer.json()["detail"]
    assert isinstance(sentence, str) and sentence.endswith(".") and "\n" not in sentence, sentence
    assert "Traceback" not in sentence and "<" not in sentence.replace("<0.9", ""), sentence
    return str(sentence)
