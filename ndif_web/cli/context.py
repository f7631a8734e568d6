"""What every command gets: the settings as its flags, environment and files make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from ndif_models import settings
from ndif_models.settings import Settings


@dataclass(frozen=True)
class Invocation:
    """The global flags of one run of ``ndif``."""

    flags: Mapping[str, str]
    env_file: Path | None

    def settings(self, *, running_session: bool = True) -> Settings:
        """The settings in force; without ``running_session``, as if no farm ran."""
        return settings.load(self.flags, env_file=self.env_file, running_session=running_session)


pass_invocation = click.make_pass_decorator(Invocation)
