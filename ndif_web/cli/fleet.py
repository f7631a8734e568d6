"""``ndif scale``, ``restart``, ``export``, ``nodes``: a farm's replicas and machines, as they are and should be."""

from __future__ import annotations

import time
from typing import Any

import click
import yaml

from ndif_models.errors import LoadFailed

from .context import Invocation, pass_invocation
from .deployments import PATH, await_hot, find
from .farm import Farm
from .output import json_option, print_json, print_table, size

#: What ``ndif export`` writes of a deployment, and ``ndif deploy -f`` reads.
OPTIONS = ("revision", "task", "dtype", "replicas")
_RESTART_LIMIT_S = 600.0
_POLL_S = 0.3


@click.command()
@click.argument("checkpoint")
@click.argument("replicas", type=click.IntRange(min=1, max=64))
@pass_invocation
def scale(invocation: Invocation, checkpoint: str, replicas: int) -> None:
    """Serve CHECKPOINT by as many REPLICAS, and return when they are ready.

    Next: `ndif status` shows each of them; `ndif evict CHECKPOINT` is how to have none.
    """
    with Farm(invocation.settings()) as farm:
        one = find(farm, checkpoint)
        farm.post(PATH, {"checkpoint": one["repo_id"], "replicas": replicas, **_named(one, ("revision", "task"))})
        await_hot(farm, one["queue"], replicas)


@click.command()
@click.argument("checkpoint")
@click.option("--replica", help="The id of one replica, as `ndif status` shows it.")
@pass_invocation
def restart(invocation: Invocation, checkpoint: str, replica: str | None) -> None:
    """Replace the replicas of CHECKPOINT, or one of them, by fresh ones; each finishes the job that it runs.

    Next: `ndif logs REPLICA` shows what one prints; `ndif status` shows them all.
    """
    with Farm(invocation.settings()) as farm:
        queue = find(farm, checkpoint)["queue"]
        stopped = farm.post(f"{PATH}/restart", {"queue": queue} | ({"replica": replica} if replica else {}))["stopped"]
        deadline = time.monotonic() + _RESTART_LIMIT_S
        while set(stopped) & {id for id, one in farm.get("/status")["deployments"].items() if one["queue"] == queue}:
            if time.monotonic() > deadline:
                raise LoadFailed(f"{queue} still runs a job after {_RESTART_LIMIT_S:g} s; `ndif queue` shows it.")
            time.sleep(_POLL_S)
        await_hot(farm, queue, int(find(farm, queue)["replicas"]))


@click.command()
@pass_invocation
def export(invocation: Invocation) -> None:
    """Print what the farm serves as a models.yaml, every option kept.

    Next: `ndif deploy -f models.yaml` serves the same on this farm or another.
    """
    with Farm(invocation.settings()) as farm:
        found = [one for one in farm.get(PATH)["deployments"] if one["asked_for"]]
    models = [{"checkpoint": one["repo_id"], **_named(one, OPTIONS)} for one in found]
    click.echo(yaml.safe_dump({"models": models}, sort_keys=False), nl=False)


@click.command()
@json_option
@pass_invocation
def nodes(invocation: Invocation, as_json: bool) -> None:
    """Show the machines of the farm.

    Next: `ndif status` shows what each serves; `ndif start agent` adds this machine to a farm.
    """
    with Farm(invocation.settings()) as farm:
        status = farm.get("/status")
    found = status["cluster"]["nodes"]
    if as_json:
        print_json(found)
        return
    rows = [
        {
            "node": name,
            "cpus": one["cpus"],
            "memory": size(one["memory_bytes"]),
            "free": size(one["free_bytes"]),
            "gpus": len(one["gpus"]),
            "replicas": sum(entry["node"] == name for entry in status["deployments"].values()),
        }
        for name, one in found.items()
    ]
    if rows:
        print_table(rows, ("node", "cpus", "memory", "free", "gpus", "replicas"))
    else:
        click.echo("No machine serves. Next: `ndif start agent`.")


def _named(one: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: one[name] for name in names if one[name] is not None}
