"""What should run: the deployments somebody asked for. What does run is told by heartbeats, never by this table.

SQLAlchemy is imported when a function is called: agents and replicas load this module and never touch the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tables import DeploymentRow


@dataclass(frozen=True)
class Deployment:
    """A model that should be served, by how many replicas, in which dtype (None: the checkpoint's own)."""

    queue: str
    model_key: str
    replicas: int
    dtype: str | None
    created_at: datetime


def deployments(url: str) -> list[Deployment]:
    """Every deployment, oldest first."""
    from sqlalchemy import select

    from .db import session_scope
    from .tables import DeploymentRow

    with session_scope(url, read_only=True) as session:
        rows = session.scalars(select(DeploymentRow).order_by(DeploymentRow.created_at, DeploymentRow.queue))
        return [_record(row) for row in rows]


def put_deployment(url: str, *, queue: str, model_key: str, replicas: int, dtype: str | None = None) -> Deployment:
    """Create a deployment, or change the one its queue has."""
    from .db import session_scope
    from .tables import DeploymentRow

    with session_scope(url) as session:
        row = session.get(DeploymentRow, queue, with_for_update=True)
        if row is None:
            row = DeploymentRow(queue=queue, created_at=datetime.now(UTC))
            session.add(row)
        row.model_key, row.replicas, row.dtype = model_key, replicas, dtype
        session.flush()
        return _record(row)


def remove_deployment(url: str, queue: str) -> bool:
    """Forget a deployment; False when there was none."""
    from sqlalchemy import delete

    from .db import session_scope
    from .tables import DeploymentRow

    with session_scope(url) as session:
        gone = delete(DeploymentRow).where(DeploymentRow.queue == queue).returning(DeploymentRow.queue)
        return session.execute(gone).first() is not None


def _record(row: DeploymentRow) -> Deployment:
    return Deployment(row.queue, row.model_key, row.replicas, row.dtype, row.created_at)
