"""The jail: which walls go up around a runner, in which order, and what is left inside. Must not import torch."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from ndif_models.errors import SettingError
from ndif_models.settings import Settings

from .walls import Refused, landlock, privileges, seccomp

PRIVILEGES, LANDLOCK, SECCOMP = "privileges", "landlock", "seccomp"
#: In the order in which they go up: without new privileges anybody may raise the next, and the last forbids the others.
WALLS = (PRIVILEGES, LANDLOCK, SECCOMP)

#: Shared libraries, time zones, and what the processor is; nothing of anybody's.
SYSTEM = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/localtime"),
    *("/usr/share/zoneinfo", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu", "/sys/devices/system/node"),
    *("/dev/urandom", "/dev/zero"),
    # Libraries make an HTTP client, and read these, even where they are told to stay offline.
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/usr/share/ca-certificates"),
)
NULL = Path("/dev/null")


def enclose(readable: Sequence[Path]) -> dict[str, str]:
    """Put up every wall around this process.

    Args:
        readable: what may be read beside the system's libraries; :func:`python` for one.

    Returns:
        For each wall the reason why it is not up; empty when it is.
    """
    # The process's own entry of /proc is another one's for every process, so it is looked up here and now.
    inside = [*map(Path, SYSTEM), Path(f"/proc/{os.getpid()}"), *readable]
    raise_wall: dict[str, Callable[[], None]] = {
        PRIVILEGES: privileges.raise_wall,
        LANDLOCK: lambda: landlock.raise_wall(inside, [NULL]),
        SECCOMP: seccomp.raise_wall,
    }
    return {name: _refusal(raise_wall[name]) for name in WALLS}


def prepare() -> None:
    """Make what :func:`enclose` needs, once for every process forked from this one.

    Behind the first wall it could not be imported, and made anew it would take each runner ten milliseconds.
    """
    with contextlib.suppress(Refused):
        seccomp.common_rules()


def try_out() -> dict[str, str]:
    """What :func:`enclose` would answer here, found out by a child."""
    prepare()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(enclose(python())).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    found: dict[str, str] = json.loads(text) if text else dict.fromkeys(WALLS, "the trial ended by itself")
    return found


def required(settings: Settings) -> list[str]:
    """The walls without which no job runs here.

    Raises:
        SettingError: one that there is not is asked for.
    """
    if settings.dev_mode and not settings.sandbox_require:
        return []
    names = [name.strip() for name in settings.sandbox_require.split(",") if name.strip()] or list(WALLS)
    unknown = [name for name in names if name not in WALLS]
    if unknown:
        raise SettingError(f"NDIF_SANDBOX_REQUIRE names {unknown[0]!r}; the walls are {', '.join(WALLS)}.")
    return names


def missing(walls: dict[str, str], wanted: Sequence[str]) -> str | None:
    """One sentence about required walls that are not up; None when all are."""
    reasons = [f"{name} ({walls.get(name, 'there is no such wall')})" for name in wanted if walls.get(name) != ""]
    return f"The jail lacks {' and '.join(reasons)}." if reasons else None


def _is_site(entry: str) -> bool:
    return Path(entry).name in ("site-packages", "dist-packages")


def _refusal(raise_wall: Callable[[], None]) -> str:
    try:
        raise_wall()
    except Refused as error:
        return str(error)
    return ""


def python() -> list[Path]:
    """Python, its standard library, the installed packages, and packages loaded from elsewhere.

    Not every folder on the path: a project's own may hold anything, its secrets too.
    """
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "include")}
    installed = [Path(entry) for entry in sorted({*standard, *sys.path}) if entry in standard or _is_site(entry)]
    loaded = [module for name, module in sys.modules.items() if "." not in name and hasattr(module, "__path__")]
    places = {Path(place) for module in loaded for place in module.__path__}
    elsewhere = [place for place in places if not any(place.is_relative_to(one) for one in installed)]
    return [*installed, *sorted(elsewhere), Path(sys.executable), Path(sys.base_prefix) / "lib"]
