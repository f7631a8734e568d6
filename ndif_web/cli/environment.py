"""``ndif env``: the packages of the farm beside this machine's, and a file of settings to start from."""

from __future__ import annotations

from typing import Any

import click

from ndif_models.environment import environment
from ndif_models.settings import table

from .context import Invocation, pass_invocation
from .farm import Farm
from .output import json_option, print_json, print_table


@click.group(invoke_without_command=True)
@click.option("--local", is_flag=True, help="Only this machine's packages; asks no farm.")
@json_option
@click.pass_context
def env(ctx: click.Context, local: bool, as_json: bool) -> None:
    """Compare the Python packages of the farm with those of this machine.

    Next: `ndif env example` prints a file with every setting.
    """
    if ctx.invoked_subcommand is not None:
        return
    here = environment()
    if local:
        _print(
            here, as_json, [{"package": name, "here": version} for name, version in _lines(here)], ("package", "here")
        )
        return
    with Farm(ctx.ensure_object(Invocation).settings()) as farm:
        there = farm.get("/env")
    ours = dict(_lines(here))
    rows = [
        {"package": name, "farm": version, "here": ours.get(name), "same": "yes" if ours.get(name) == version else "no"}
        for name, version in _lines(there)
    ]
    _print({"farm": there, "here": here}, as_json, rows, ("package", "farm", "here", "same"))


@env.command()
@pass_invocation
def example(_invocation: Invocation) -> None:
    """Print a .env file with every setting, its default and what it means.

    Next: `ndif env example > .env`, uncomment what you change, `ndif start`.
    """
    for name, default, unit, help_text in table():
        click.echo(f"# {help_text}{f' [{unit}]' if unit else ''}\n# {name}={default}\n")


def _lines(told: dict[str, Any]) -> list[tuple[str, str]]:
    python = str(told["python_version"]).split()[0]
    return [("python", python), *sorted(told["packages"].items())]


def _print(document: Any, as_json: bool, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    if as_json:
        print_json(document)
    else:
        print_table(rows, columns)
