"""Names of things: the key of a model as clients send it, the queue it is served from, ids of jobs and replicas."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from .errors import BadRequest

DEFAULT_CLASS = "nnsight.modeling.transformers.TransformersModel"
DEFAULT_TASK = "text-generation"
DEFAULT_REVISION = "main"

#: Classes a client may name, and the class each is served as.
KNOWN_CLASSES = {
    DEFAULT_CLASS: DEFAULT_CLASS,
    "nnsight.modeling.language.LanguageModel": DEFAULT_CLASS,
    "nnsight.modeling.vlm.VisionLanguageModel": DEFAULT_CLASS,
}

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPO_ID = re.compile(rf"(?!.*(?:--|\.\.)){_PART}(?:/{_PART})?\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}\Z")
_TASK = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_FIELDS = {"repo_id", "revision", "task", "trust_remote_code"}


@dataclass(frozen=True, order=True)
class ModelKey:
    """Which model a request runs on. Equal keys are one deployment."""

    repo_id: str
    revision: str = DEFAULT_REVISION
    task: str = DEFAULT_TASK
    trust_remote_code: bool = False
    import_path: str = DEFAULT_CLASS

    def __post_init__(self) -> None:
        for name, pattern in (("repo_id", _REPO_ID), ("revision", _REVISION), ("task", _TASK)):
            value = getattr(self, name)
            if not isinstance(value, str) or not pattern.match(value) or ".." in value:
                raise BadRequest(f"The model key's {name} is not a valid {name.replace('_', ' ')}.")
        if not isinstance(self.trust_remote_code, bool):
            raise BadRequest("The model key's trust_remote_code must be true or false.")

    @classmethod
    def parse(cls, text: str) -> ModelKey:
        """Read ``import.path.Class:{json}`` as nnsight writes it.

        Raises:
            BadRequest: the text is no key, or names a class this farm does not serve.
        """
        import_path, colon, suffix = text.partition(":")
        if not colon:
            raise BadRequest("The model key must read import.path.Class:{...}.")
        if import_path not in KNOWN_CLASSES:
            raise BadRequest(
                f"The model key names a class this farm does not serve; it serves {', '.join(KNOWN_CLASSES)}."
            )
        try:
            data: Any = json.loads(suffix)
        except (ValueError, RecursionError):
            raise BadRequest("The model key's part after the class is not JSON.") from None
        if not isinstance(data, dict) or data.get("repo_id") is None or not set(data) <= _FIELDS:
            raise BadRequest(f"The model key must hold repo_id and may hold only {', '.join(sorted(_FIELDS))}.")
        given = {name: value for name, value in data.items() if value is not None}
        return cls(**given, import_path=KNOWN_CLASSES[import_path])

    def __str__(self) -> str:
        """The key as nnsight writes it."""
        data: dict[str, Any] = {"repo_id": self.repo_id, "revision": self.revision}
        if self.trust_remote_code:
            data["trust_remote_code"] = True
        data["task"] = self.task
        return f"{self.import_path}:{json.dumps(data)}"

    @property
    def queue(self) -> str:
        """The Celery queue: the repo id, with whatever is not the default behind it (``org/name@rev?task=...``)."""
        name = self.repo_id
        if self.revision != DEFAULT_REVISION:
            name += f"@{quote(self.revision, safe='')}"
        extra = {}
        if self.task != DEFAULT_TASK:
            extra["task"] = self.task
        if self.trust_remote_code:
            extra["trust_remote_code"] = "true"
        if self.import_path != DEFAULT_CLASS:
            extra["class"] = self.import_path
        return f"{name}?{urlencode(extra)}" if extra else name

    @classmethod
    def from_queue(cls, queue: str) -> ModelKey:
        """The inverse of :attr:`queue`; also reads what a person types, such as ``gpt2@main``.

        Raises:
            BadRequest: the name is not a queue of a model.
        """
        name, _, query = queue.partition("?")
        repo_id, _, revision = name.partition("@")
        extra = dict(parse_qsl(query))
        trusted = extra.pop("trust_remote_code", "false") == "true"
        import_path = extra.pop("class", DEFAULT_CLASS)
        task = extra.pop("task", DEFAULT_TASK)
        if extra or import_path not in KNOWN_CLASSES:
            raise BadRequest(f"{queue!r} is not the name of a model's queue.")
        return cls(repo_id, unquote(revision) or DEFAULT_REVISION, task, trusted, KNOWN_CLASSES[import_path])

    def with_repo_id(self, repo_id: str) -> ModelKey:
        """The same key for another spelling of the repository."""
        return replace(self, repo_id=repo_id)


def is_repo_id(text: str) -> bool:
    """Whether a repository may be called this: ``NAME`` or ``ORG/NAME`` by the Hub's rules."""
    return bool(_REPO_ID.match(text))


def new_id(prefix: str = "") -> str:
    """A fresh unguessable id (128 random bits)."""
    return prefix + secrets.token_hex(16)
