"""A worker whose jobs have no walls, there only to measure what walls cost.

``celery -A tests.bench.unjailed worker -Q NAME``; its zygote is this file.
"""

from __future__ import annotations

from ndif_tasks.app import app as celery
from ndif_tasks.replica import zygote_process
from ndif_tasks.sandbox import jail, zygote

__all__ = ["celery"]

zygote_process.ZYGOTE = (__file__,)


def main() -> None:
    """A zygote that forks runners and puts nothing up around them."""
    jail.examine = lambda *_: dict.fromkeys(jail.WALLS, f"{jail.REFUSED}: not wanted here")
    jail.enclose = lambda house, cell: {}
    zygote.main()


if __name__ == "__main__":
    main()
