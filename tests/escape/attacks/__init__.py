"""What a hostile block would try, each in a bounded, harmless form: aimed at loopback, and at what a test made for it.

An attack returns when it has succeeded and raises when it has not. ``target`` is what the test made (``victims.py``).
Standard library only, and every import inside, so that this package can be sent as part of a block.
"""

from __future__ import annotations

from . import bombs, endings, farm, files, itself, kernel, network, processes
from .calls import Attack


def _named(*attacks: Attack) -> dict[str, Attack]:
    return {attack.__name__: attack for attack in attacks}


#: By name; each file lists its own.
ATTACKS = _named(*(attack for file in (files, processes, itself, network, kernel) for attack in file.ATTACKS))
BOMBS = _named(*bombs.BOMBS)
#: Those that end their process, and those that do not end by themselves while somebody waits.
ENDINGS, ENDLESS = _named(*endings.ENDINGS), _named(*endings.ENDLESS)
#: Those that only a running farm can be the target of.
ON_A_FARM = _named(*farm.ON_A_FARM)
ALL = ATTACKS | BOMBS | ENDINGS | ENDLESS | ON_A_FARM
