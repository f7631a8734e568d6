"""This interpreter and its packages, as ``GET /env`` tells them and nnsight's ``compare`` reads them."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any


def environment() -> dict[str, Any]:
    """``{"python_version": sys.version, "packages": {import name: version}}``; imports nothing of what it lists."""
    packages = {
        name: metadata.version(distributions[0])
        for name, distributions in metadata.packages_distributions().items()
        if name.isidentifier() and not name.startswith("_")
    }
    return {"python_version": sys.version, "packages": dict(sorted(packages.items()))}
