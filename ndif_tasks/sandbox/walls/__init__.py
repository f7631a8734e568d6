"""The walls around a job, one file each. A wall goes up in the process that calls it, and never comes down.

Each function that puts one up returns in what it is weaker than elsewhere (empty when it is whole), or raises
:class:`Refused` with the reason why it is not there at all. Must not import torch.
"""

from __future__ import annotations


class Refused(Exception):
    """This kernel, or this user, does not let a wall go up; the text says why."""
