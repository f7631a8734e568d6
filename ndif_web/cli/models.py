"""``ndif models``: the models kept on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from .context import Invocation, pass_invocation
from .output import json_option, print_json, print_table, size


@click.group()
def models() -> None:
    """List and import the models kept on this machine.

    Next: `ndif models list`.
    """


@models.command("list")
@json_option
@pass_invocation
def list_models(invocation: Invocation, as_json: bool) -> None:
    """List the models and adapters under HF_HOME.

    Next: `ndif deploy CHECKPOINT` serves one of them.
    """
    from ndif_models import snapshots

    rows = [
        {"model": held.repo_id, "revision": held.revision, "commit": held.commit, "kind": str(held.kind),
         "size_bytes": held.size_bytes, "size": size(held.size_bytes)}
        for held in snapshots.held(invocation.settings().hf_home)
    ]  # fmt: skip
    if as_json:
        print_json([{key: value for key, value in row.items() if key != "size"} for row in rows])
    elif rows:
        print_table([row | {"commit": str(row["commit"])[:12]} for row in rows],
                    ("model", "revision", "commit", "kind", "size"))  # fmt: skip
    else:
        click.echo(f"{invocation.settings().hf_home} holds no models. Next: ndif deploy openai-community/gpt2")


@models.command("import")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--as", "repo_id", required=True, metavar="ORG/NAME", help="The name to serve it under.")
@pass_invocation
def import_model(invocation: Invocation, path: Path, repo_id: str) -> None:
    """Take the folder PATH (as save_pretrained writes it) into HF_HOME under a repository's name.

    Next: `ndif deploy ORG/NAME` serves it.
    """
    from ndif_models import snapshots

    held = snapshots.import_folder(path, repo_id, invocation.settings().hf_home)
    click.echo(f"{held.repo_id} is imported ({size(held.size_bytes)}). Next: ndif deploy {held.repo_id}")
