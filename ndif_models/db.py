"""The database: declarative base, engines and sessions. The tables live elsewhere, and so do their migrations."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy import Engine, event
from sqlalchemy.orm import DeclarativeBase, Session

_BUSY_TIMEOUT_MS = 10_000
_CONNECT_TIMEOUT_S = 10
_READ_ONLY = "ndif_read_only"


class Base(DeclarativeBase):
    """Every table of the farm."""


@functools.cache
def engine(url: str) -> Engine:
    """The process's one engine for a URL; it checks connections before use, so a restarted server is survived."""
    # A server that is gone without a word would keep its callers for minutes.
    timeout = {"connect_timeout": _CONNECT_TIMEOUT_S} if url.startswith("postgresql") else {}
    made = sqlalchemy.create_engine(url, pool_pre_ping=True, connect_args=timeout)
    if made.dialect.name == "sqlite":
        event.listen(made, "connect", _prepare_sqlite)
        event.listen(made, "begin", _begin_sqlite)
    return made


@contextmanager
def session_scope(url: str, *, read_only: bool = False) -> Iterator[Session]:
    """One transaction: committed at the end of the block, rolled back when it raises.

    Args:
        read_only: the block only reads, and so need not wait for writers.
    """
    with Session(engine(url), expire_on_commit=False) as session, session.begin():
        session.connection(execution_options={_READ_ONLY: read_only})
        yield session


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver would begin transactions late, and none for changes of tables; they are begun below.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: sqlalchemy.Connection) -> None:
    # A transaction that reads first and then writes fails at once when another has written meanwhile; one that takes
    # the write lock at its beginning waits for it.
    read_only = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
