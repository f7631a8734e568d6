"""The tables, as SQLAlchemy sees them. Others ask the module of the noun, which imports this when it is used."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import BigInteger, DateTime, Dialect, Double
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from .db import Base


class Time(TypeDecorator[datetime]):
    """A time with its zone: SQLite keeps none, and what is stored there is UTC; PostgreSQL gives its session's."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """As UTC."""
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


class JobRow(Base):
    """A job that is over: who, what, when, what it cost and how it ended; never what was sent or came back."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True)
    queue: Mapped[str] = mapped_column(index=True)
    owner: Mapped[str] = mapped_column(index=True)
    status: Mapped[str]
    ended: Mapped[str]
    attempts: Mapped[int]
    replica: Mapped[str]
    submitted_at: Mapped[datetime] = mapped_column(Time)
    started_at: Mapped[datetime | None] = mapped_column(Time)
    finished_at: Mapped[datetime] = mapped_column(Time, index=True)
    run_s: Mapped[float] = mapped_column(Double)
    cpu_s: Mapped[float] = mapped_column(Double)
    peak_bytes: Mapped[int] = mapped_column(BigInteger)
    policy: Mapped[str]


class DeploymentRow(Base):
    """A model that should be served, by how many replicas, in which dtype (None: the checkpoint's own)."""

    __tablename__ = "deployments"

    queue: Mapped[str] = mapped_column(primary_key=True)
    model_key: Mapped[str]
    replicas: Mapped[int]
    dtype: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(Time)
