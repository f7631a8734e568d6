"""Alembic's entry: runs the migrations on the database that ``ndif_models.db`` names."""

from __future__ import annotations

from alembic import context

from ndif_models import tables  # noqa: F401 - puts them on the metadata
from ndif_models.db import Base, engine


def run() -> None:
    """Migrate inside one transaction; SQLite alters a table by copying it."""
    with engine(context.config.attributes["url"]).connect() as connection:
        context.configure(
            connection=connection, target_metadata=Base.metadata, render_as_batch=True, transactional_ddl=True
        )
        with context.begin_transaction():
            context.run_migrations()


run()
