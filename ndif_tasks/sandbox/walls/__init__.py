"""The walls around a runner, one file each. A wall goes up in the process that calls it, and never comes down.

Every file has ``raise_wall``, which puts it up or raises :class:`Refused` with the reason. Must not import torch.
"""

from __future__ import annotations


class Refused(Exception):
    """This kernel, or this user, does not let a wall go up; the text says why."""
