"""The database: declarative base, engines, sessions, and bringing a schema up to date. The tables live elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import Engine, event
from sqlalchemy.orm import DeclarativeBase, Session

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
_BUSY_TIMEOUT_MS = 10_000


class Base(DeclarativeBase):
    """Every table of the farm."""


@functools.cache
def engine(url: str) -> Engine:
    """The process's one engine for a URL; it checks connections before use, so a restarted server is survived."""
    made = sqlalchemy.create_engine(url, pool_pre_ping=True)
    if made.dialect.name == "sqlite":
        event.listen(made, "connect", _prepare_sqlite)
    return made


@contextmanager
def session_scope(url: str) -> Iterator[Session]:
    """One transaction: committed at the end of the block, rolled back when it raises."""
    with Session(engine(url), expire_on_commit=False) as session, session.begin():
        yield session


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the schema to ``revision``."""
    from alembic import command  # a second of imports that only this needs

    command.upgrade(_alembic_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    """Take the schema back to ``revision`` (``base`` empties it)."""
    from alembic import command

    command.downgrade(_alembic_config(url), revision)


def _alembic_config(url: str) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["url"] = url
    return config


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
