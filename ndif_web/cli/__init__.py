"""The ``ndif`` command: global flags, and one file per noun, imported when its command is used."""

from __future__ import annotations

import importlib
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from ndif_models.errors import NdifError, SettingError
from ndif_models.settings import table

from .context import Invocation

#: Every command, where it lives, and its line in the list of commands: listing them imports none of them.
COMMANDS = {
    "start": ("start", "start", "Start the farm, or one service of it."),
    "stop": ("start", "stop", "Stop the farm, or one service of it."),
    "doctor": ("doctor", "doctor", "Check everything the farm needs on this machine."),
    "env": ("environment", "env", "Compare the farm's Python packages with this machine's."),
    "info": ("info", "info", "Show the running session: addresses, services, versions."),
    "status": ("deployments", "status", "Show what the farm serves."),
    "deploy": ("deployments", "deploy", "Serve a model, and wait until it is ready."),
    "scale": ("fleet", "scale", "Serve a model by more or fewer replicas."),
    "restart": ("fleet", "restart", "Replace a model's replicas by fresh ones."),
    "export": ("fleet", "export", "Print what is served, for `ndif deploy -f`."),
    "nodes": ("fleet", "nodes", "Show the machines of the farm."),
    "evict": ("deployments", "evict", "Stop serving a model, or one replica of it."),
    "queue": ("queue", "queue", "Show the jobs that run and wait."),
    "kill": ("queue", "kill", "End a job that runs or waits."),
    "logs": ("logs", "logs", "Print the log of a service or replica."),
    "models": ("models", "models", "List and import the models kept on this machine."),
    "db": ("database", "db", "Look after the database."),
}


class Commands(click.Group):
    """A group that imports a command when it is asked for, and tells every error of the farm in one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f".{module}", __name__), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NdifError as error:
            raise click.ClickException(str(error)) from None


def _flags(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    known = {name for name, *_ in table()}
    flags: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} must read NAME=VALUE.")
        if name not in known:
            raise click.BadParameter(f"{name} is no setting of the farm; `ndif env example` lists them.")
        flags[name] = value
    return flags


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--env-file", type=click.Path(path_type=Path, dir_okay=False), help="A file of NAME=value lines.")
@click.option(
    "--set", "flags", multiple=True, callback=_flags, metavar="NAME=VALUE", help="Set one setting; repeatable."
)
@click.version_option(metadata.version("ndif"), prog_name="ndif")
@click.pass_context
def main(ctx: click.Context, env_file: Path | None, flags: dict[str, str]) -> None:
    """Serve models for interpretability research: nnsight traces on weights that stay resident.

    Settings come from --set, the environment, --env-file, ./.env and the running session, in this order.

    Next: `ndif doctor` checks this machine, `ndif start` starts a farm on it.
    """
    if env_file is not None and not env_file.is_file():
        raise SettingError(f"The settings file {env_file} does not exist.")
    ctx.obj = Invocation(flags, env_file)
