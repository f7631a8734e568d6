"""A user id that nobody else has: no file is its own, and no other process may be signalled or traced with it."""

from __future__ import annotations

import os
import secrets

from .. import kernel
from . import Refused

#: Above all that distributions, containers and systemd give away; what is added fits beneath the end of 31 bits.
_FIRST_ID = 0x70000000
_IDS = 0x0F000000
_NOBODY = 65534


def drop() -> None:
    """Stop being root, for good. The id is drawn: what the kernel counts by user would otherwise be several zygotes'.

    Raises:
        Refused: this process may not change its user.
    """
    for id in (_FIRST_ID + secrets.randbelow(_IDS), _NOBODY):
        try:
            os.setgroups([])
            os.setresgid(id, id, id)
            os.setresuid(id, id, id)
        except OSError as error:
            reason = error
            continue
        # Its own entries in /proc stay its own.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        return
    raise Refused(f"the user cannot be changed: {reason.strerror}")
