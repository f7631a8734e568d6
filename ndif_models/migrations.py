"""Bringing a database's tables up to date. SQLAlchemy and Alembic (a second of imports) come only when needed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "migrations"
_SQLITE_FILE = "sqlite:///"


def upgrade_own(url: str) -> None:
    """Bring a SQLite file up to date; other databases are left to their owners and ``ndif db upgrade``."""
    if url.startswith(_SQLITE_FILE) and _revision(url.removeprefix(_SQLITE_FILE)) != head():
        upgrade(url)


def is_current(url: str) -> bool:
    """Whether a database has the tables of this farm, or is one that the farm brings up to date itself.

    Raises:
        SQLAlchemyError: it does not answer.
        ImportError: its driver is missing.
    """
    from alembic.runtime.migration import MigrationContext

    from . import db

    with db.engine(url).connect() as connection:
        return url.startswith(_SQLITE_FILE) or MigrationContext.configure(connection).get_current_revision() == head()


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the schema to ``revision``."""
    from alembic import command

    command.upgrade(_alembic_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    """Take the schema back to ``revision`` (``base`` empties it)."""
    from alembic import command

    command.downgrade(_alembic_config(url), revision)


def _alembic_config(url: str) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["url"] = url
    return config


def head() -> str:
    """The newest revision: a migration's file is named by its number, and numbers only grow."""
    return max(path.name.partition("_")[0] for path in (FOLDER / "versions").glob("[0-9]*_*.py"))


def _revision(path: str) -> str | None:
    """The revision of a SQLite file, read without SQLAlchemy."""
    if not Path(path).is_file():
        return None
    with closing(sqlite3.connect(path)) as connection:
        try:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.Error:
            return None
    return str(row[0]) if row else None
