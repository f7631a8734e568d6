"""The tables, as SQLAlchemy sees them. Others ask the module of the noun, which imports this when it is used."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime
from sqlalchemy.orm import Mapped, mapped_column

from .db import Base


class DeploymentRow(Base):
    """A model that should be served, by how many replicas, in which dtype (None: the checkpoint's own)."""

    __tablename__ = "deployments"

    queue: Mapped[str] = mapped_column(primary_key=True)
    model_key: Mapped[str]
    replicas: Mapped[int]
    dtype: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
