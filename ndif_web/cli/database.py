"""``ndif db``: the database's schema."""

from __future__ import annotations

import click

from ndif_models.errors import SettingError

from .context import Invocation, pass_invocation
from .info import without_secret


@click.group()
def db() -> None:
    """Look after the database.

    Next: `ndif db upgrade` brings its tables up to date.
    """


@db.command()
@pass_invocation
def upgrade(invocation: Invocation) -> None:
    """Bring the tables of NDIF_DATABASE_URL up to date; `ndif start` does so itself for SQLite.

    Next: `ndif start`.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from ndif_models import migrations

    settings = invocation.settings()
    if not settings.database_url:
        settings.session_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        migrations.upgrade(settings.db_url)
    except (SQLAlchemyError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(f"NDIF_DATABASE_URL ({without_secret(settings.db_url)}) cannot be used: {reason}") from None
    click.echo(f"{without_secret(settings.db_url)} is up to date.")
