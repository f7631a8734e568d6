"""The policy: what one job may take, by the tags of its owner's key. Read from YAML; must not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ndif_models.errors import SettingError

DEFAULT = "default"
_Amount = Annotated[int, Field(ge=0)]
_AtLeastOne = Annotated[int, Field(ge=1)]


class Limits(BaseModel):
    """What one job may take; ``policy.yaml`` says what each means."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_bytes: _Amount
    cpu_s: _Amount
    wall_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    threads: _AtLeastOne
    open_files: Annotated[int, Field(ge=16)]
    scratch_bytes: _AtLeastOne
    output_lines: _Amount
    output_bytes: _Amount
    result_bytes: _AtLeastOne
    modules: tuple[str, ...] | None = None


class Policy:
    """The limits of everybody, and of those with a tag."""

    def __init__(self, default: Limits, by_tag: dict[str, Limits]) -> None:
        self.default = default
        self._by_tag = by_tag

    @property
    def tags(self) -> list[str]:
        """Those with limits of their own."""
        return list(self._by_tag)

    def limits(self, tags: Sequence[str]) -> tuple[str, Limits]:
        """The limits of a key with these tags, and what they are called."""
        for tag, limits in self._by_tag.items():
            if tag in tags:
                return tag, limits
        return DEFAULT, self.default


def load(path: str) -> Policy:
    """Read a policy.

    Args:
        path: of the file that NDIF_SANDBOX_POLICY names; empty for the one that ships.

    Raises:
        SettingError: it is no policy; the sentence says where.
    """
    shipped = yaml.safe_load(files(__package__).joinpath("policy.yaml").read_text())
    return _policy(path, _read(path) if path else {}, shipped[DEFAULT])


def _read(path: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(Path(path).expanduser().read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or f"it is no YAML ({getattr(error, 'problem', None) or error})"
        raise SettingError(f"The policy {path} cannot be read: {reason}.") from None
    found = {} if found is None else found
    unknown = set(found) - {DEFAULT, "tags"} if isinstance(found, dict) else {""}
    if unknown:
        raise SettingError(f"The policy {path} must have the sections `default` and `tags`, and no other.")
    return found


def _policy(path: str, found: dict[str, Any], shipped: dict[str, Any]) -> Policy:
    default = shipped | _section(path, DEFAULT, found.get(DEFAULT))
    tags = _section(path, "tags", found.get("tags"))
    by_tag = {
        str(tag): _limits(path, f"tags.{tag}", default | _section(path, f"tags.{tag}", limits))
        for tag, limits in tags.items()
    }
    return Policy(_limits(path, DEFAULT, default), by_tag)


def _section(path: str, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise SettingError(f"The policy {path} must have names and values under `{name}`.")
    return value or {}


def _limits(path: str, section: str, values: dict[str, Any]) -> Limits:
    try:
        return Limits.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (section, *first["loc"])))
        what = first["msg"]
        if first["type"] == "extra_forbidden":
            what = f"there is no such limit; there are {', '.join(Limits.model_fields)}"
        raise SettingError(f"The policy {path} is wrong at {place}: {what}.") from None
