"""``ndif info``: the session of this machine, without its secrets."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from typing import Any

import click

from ndif_models import session
from ndif_models.settings import Settings

from .context import Invocation, pass_invocation
from .output import json_option, print_json, print_table

_PACKAGES = ("ndif", "nnsight", "transformers", "torch", "celery", "flask")


@click.command()
@json_option
@pass_invocation
def info(invocation: Invocation, as_json: bool) -> None:
    """Show the session: whether a farm runs, its addresses, services and versions.

    Next: `ndif logs SERVICE` shows what a service printed, `ndif status` what is served.
    """
    settings = invocation.settings()
    document = _document(settings)
    if as_json:
        print_json(document)
        return
    click.echo(f"session   {document['session']}\nrunning   {'yes' if document['running'] else 'no'}")
    for name, url in document["urls"].items():
        click.echo(f"{name:<9} {url}")
    click.echo("versions  " + ", ".join(f"{name} {version}" for name, version in document["versions"].items()))
    if document["services"]:
        click.echo()
        print_table(document["services"], ("service", "state", "pid", "restarts"))


def _document(settings: Settings) -> dict[str, Any]:
    record = session.read(settings.session_dir)
    services = record["services"] if record else {}
    urls = {
        "api": settings.url,
        "broker": settings.broker_url,
        "store": settings.object_store_url,
        "database": settings.db_url,
    }
    return {
        "session": str(settings.session_dir),
        "running": record is not None,
        "pid": record["pid"] if record else None,
        "urls": {name: without_secret(url) for name, url in urls.items() if url},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "services": [
            {"service": name, **{key: entry[key] for key in ("state", "pid", "restarts")}}
            for name, entry in services.items()
        ],
    }


def without_secret(url: str) -> str:
    """A URL with its password struck out."""
    return re.sub(r"(://[^/@]*:)[^/]*@", r"\1***@", url)


def version(package: str) -> str | None:
    """The installed version of a package, found without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
