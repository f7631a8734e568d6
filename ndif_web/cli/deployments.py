"""``ndif deploy``, ``ndif evict`` and ``ndif status``: what the farm serves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from ndif_models.errors import BadRequest, LoadFailed, NotDeployed

from .context import Invocation, pass_invocation
from .farm import Farm
from .output import json_option, print_json, print_table, size

PATH = "/admin/deployments"
_POLL_S = 0.3
_EVICT_LIMIT_S = 60.0
_STATUS_COLUMNS = ("model", "revision", "task", "replica", "level", "state", "dtype", "size", "waiting")


@click.command()
@click.argument("checkpoints", nargs=-1, metavar="CHECKPOINT...")
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path), help="A models.yaml, as `ndif export` writes one."
)
@click.option("--replicas", type=click.IntRange(min=1), help="How many copies serve it.")
@click.option("--dtype", help="What the weights are held in, such as bfloat16; the checkpoint's own unless given.")
@click.option("--revision", help="Branch, tag or commit; main unless given.")
@click.option("--task", help="The transformers task; text-generation unless given.")
@pass_invocation
def deploy(
    invocation: Invocation,
    /,
    checkpoints: tuple[str, ...],
    path: Path | None,
    replicas: int | None,
    **options: str | None,
) -> None:
    """Serve each CHECKPOINT (a Hugging Face repository) and all that a file names, and return when they are ready.

    Next: use the model from nnsight with `remote=True`; `ndif status` shows what is served.
    """
    listed = _listed(path) if path else []
    if not checkpoints and not listed:
        raise BadRequest("Nothing to deploy: name a CHECKPOINT, or a file of them with -f.")
    for name in checkpoints:
        if name.startswith((".", "/", "~")):
            raise BadRequest(f"{name} is a path: `ndif models import {name} --as ORG/NAME`, then deploy ORG/NAME.")
    with Farm(invocation.settings()) as farm:
        wanted = {"replicas": replicas, **options}
        bodies = [
            {"checkpoint": name, **{key: value for key, value in wanted.items() if value is not None}}
            for name in checkpoints
        ] + listed
        for deployment in [farm.post(PATH, body) for body in bodies]:
            await_hot(farm, deployment["queue"], int(deployment["replicas"]))


def _listed(path: Path) -> list[dict[str, Any]]:
    """The orders of a models.yaml; the farm checks each.

    Raises:
        BadRequest: it is none.
    """
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or "it is no YAML"
        raise BadRequest(f"{path} cannot be read: {why}.") from None
    models = found.get("models") if isinstance(found, dict) else None
    if not isinstance(models, list) or not all(isinstance(one, dict) and "checkpoint" in one for one in models):
        raise BadRequest(f"{path} must have a list `models`, each with a `checkpoint`; `ndif export` writes one.")
    return models


@click.command()
@click.argument("checkpoint")
@click.option("--replica", help="The id of one replica, as `ndif status` shows it.")
@pass_invocation
def evict(invocation: Invocation, checkpoint: str, replica: str | None) -> None:
    """Stop serving CHECKPOINT, or only one replica of it, and return when it is gone.

    Next: `ndif status` shows what is still served.
    """
    with Farm(invocation.settings()) as farm:
        deployment = find(farm, checkpoint)
        query = {"queue": deployment["queue"]} | ({"replica": replica} if replica else {})
        evicted = farm.delete(PATH, **query)["evicted"]
        _await_gone(farm, deployment, evicted, whole=replica is None)
        ids = f" ({', '.join(evicted)})" if evicted else ""
        click.echo(f"{deployment['queue']} {'has lost a replica' if replica else 'is no longer served'}{ids}.")


@click.command()
@json_option
@pass_invocation
def status(invocation: Invocation, as_json: bool) -> None:
    """Show every replica the farm has.

    Next: `ndif deploy CHECKPOINT` serves another model, `ndif evict CHECKPOINT` ends one.
    """
    with Farm(invocation.settings()) as farm:
        answer = farm.get("/status")
    if as_json:
        print_json(answer)
        return
    entries = answer["deployments"].values()
    rows = [_status_row(entry) for entry in entries]
    if rows:
        print_table(rows, _STATUS_COLUMNS)
        for entry in entries:
            if entry.get("application_state") == "UNHEALTHY":
                click.echo(f"{entry.get('description')} `ndif evict {entry.get('queue')}` takes it off the list.")
    else:
        click.echo("Nothing is served. Next: ndif deploy openai-community/gpt2")


def _status_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    n_bytes = entry.get("size_bytes")
    return {
        "model": entry.get("repo_id"),
        "revision": entry.get("revision"),
        "task": entry.get("task"),
        "replica": entry.get("replica_id"),
        "level": entry.get("deployment_level"),
        "state": entry.get("application_state"),
        "dtype": entry.get("dtype"),
        "size": size(n_bytes) if n_bytes else None,
        "waiting": entry.get("waiting"),
    }


def await_hot(farm: Farm, queue: str, replicas: int) -> None:
    """Show progress until enough replicas are hot.

    Raises:
        LoadFailed: the farm gave up; the sentence is its own.
    """
    began, last = time.monotonic(), ""
    while True:
        found = farm.get(PATH, queue=queue)["deployments"]
        if not found:
            raise NotDeployed(f"{queue} was evicted while it was being deployed.")
        entry = found[0]
        if entry["state"] == "FAILED":
            reason = f"{queue} could not be deployed: {entry['description']}"
            raise LoadFailed(f"{reason} `ndif deploy` tries again; `ndif evict {queue}` takes it off the list.")
        if int(entry["hot"]) >= replicas:
            click.echo(
                f"{queue} is ready ({replicas} replica{'s' * (replicas != 1)}, {time.monotonic() - began:.1f} s)."
            )
            return
        line = f"{queue}: {entry['state'].lower()}. {entry['description']}".rstrip(". ") + "."
        if line != last:
            click.echo(line, err=True)
            last = line
        time.sleep(_POLL_S)


def find(farm: Farm, checkpoint: str) -> dict[str, Any]:
    """The deployment a person means: its queue, its repository, or a short name that only one has."""
    everything: list[dict[str, Any]] = farm.get(PATH)["deployments"]
    for matches in (
        [d for d in everything if d["queue"] == checkpoint],
        [d for d in everything if d["repo_id"] == checkpoint],
        [d for d in everything if d["repo_id"].rpartition("/")[2].lower() == checkpoint.lower()],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise NotDeployed(f"{checkpoint} may be any of {', '.join(d['queue'] for d in matches)}; name one of them.")
    deployed = ", ".join(d["queue"] for d in everything) or "nothing"
    raise NotDeployed(f"{checkpoint} is not deployed. Deployed: {deployed}.")


def _await_gone(farm: Farm, deployment: Mapping[str, Any], evicted: list[str], *, whole: bool) -> None:
    """Return when the replicas are gone (``whole``: and the deployment with them)."""
    deadline = time.monotonic() + _EVICT_LIMIT_S
    while time.monotonic() < deadline:
        listed = whole and bool(farm.get(PATH, queue=deployment["queue"])["deployments"])
        living = {entry.get("replica_id") for entry in farm.get("/status")["deployments"].values()}
        if not listed and not living & set(evicted):
            return
        time.sleep(_POLL_S)
    raise LoadFailed(f"{deployment['queue']} is still stopping after {_EVICT_LIMIT_S:g} s; see `ndif logs agent`.")
