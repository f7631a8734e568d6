"""``python -m ndif_web.cli``: the ``ndif`` command."""

from . import main

main()
