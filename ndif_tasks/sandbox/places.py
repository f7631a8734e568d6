"""What a job may read: Python, the installed packages, the system's libraries, and what the processor is.

Must not import torch.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

#: Shared libraries and time zones.
LIBRARIES = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/localtime"),
    *("/usr/share/zoneinfo", "/usr/local/share/zoneinfo"),
    # Libraries make an HTTP client, and read these, even where they are told to stay offline.
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/usr/share/ca-certificates"),
)
#: What the processor is, and devices that give bytes; nothing of anybody's.
MACHINE = ("/sys/devices/system/cpu", "/sys/devices/system/node", "/dev/urandom", "/dev/random", "/dev/zero")
NULL = "/dev/null"
OF_PROC = ("/proc/cpuinfo", "/proc/meminfo")


def system() -> list[Path]:
    """The system's own places that are here."""
    return [Path(place) for place in (*LIBRARIES, *MACHINE) if os.path.exists(place)]


def python() -> list[Path]:
    """Python, its standard library, the installed packages, and packages that lie elsewhere.

    Not every folder on the path: a project's own may hold anything, its secrets too.
    """
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "include")}
    installed = {Path(entry) for entry in {*standard, *sys.path} if entry in standard or is_site(entry)}
    elsewhere = {place for place in _elsewhere() if not any(place.is_relative_to(one) for one in installed)}
    prefix = {Path(sys.executable), Path(sys.base_prefix) / "lib", Path(sys.prefix) / "pyvenv.cfg"}
    return sorted(place for place in installed | elsewhere | prefix if place.exists())


def outermost(places: Iterable[Path]) -> list[Path]:
    """These places and what their links mean, without those that lie in another."""
    every = sorted({*places, *(place.resolve() for place in places)})
    kept: list[Path] = []
    for place in every:
        if not (kept and place.is_relative_to(kept[-1])):
            kept.append(place)
    return kept


def _elsewhere() -> Iterator[Path]:
    """Where packages are that were installed to be edited in place."""
    outside = [entry for entry in sys.path if os.path.isdir(entry) and not is_site(entry)]
    names = {found.name for found in pkgutil.iter_modules(_not_standard(outside))}
    names |= {name for one in metadata.distributions() for name in _edited_in_place(one)}
    for name in sorted(names):
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        yield from map(Path, spec.submodule_search_locations or ())
        if not spec.submodule_search_locations and spec.has_location and spec.origin:
            yield Path(spec.origin)


def _edited_in_place(distribution: metadata.Distribution) -> list[str]:
    if '"editable"' not in (distribution.read_text("direct_url.json") or ""):
        return []
    return (distribution.read_text("top_level.txt") or "").split()


def _not_standard(entries: Sequence[str]) -> list[str]:
    standard = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    return [entry for entry in entries if not any(Path(entry).is_relative_to(one) for one in standard)]


def is_site(entry: str) -> bool:
    """Whether a folder on Python's path is one of installed packages."""
    return Path(entry).name in ("site-packages", "dist-packages")
