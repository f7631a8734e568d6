"""The work: the Celery app (``ndif_tasks.celery``), jobs and their updates, replicas, and the control of the fleet.

Everything outside ``replica/`` and ``sandbox/`` works where torch cannot be imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import app as celery

__all__ = ["celery"]


def __getattr__(name: str) -> Any:
    # Celery's ``-A ndif_tasks`` asks for this attribute; building the app only then keeps importing free.
    if name == "celery":
        from .app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
