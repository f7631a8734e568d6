"""``ndif doctor``: everything the farm needs on this machine, each checked and told in one sentence."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import click
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ndif_models import session
from ndif_models.errors import SettingError
from ndif_models.settings import Settings

from . import binaries, plan, ports, probes
from .context import Invocation, pass_invocation
from .output import json_option, print_json, print_table, size

_LEAST_MEMORY_BYTES = 4 * 2**30
_LEAST_DISK_BYTES = 5 * 2**30


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One line of the doctor's table."""

    verdict: Verdict
    name: str
    sentence: str


@click.command()
@json_option
@pass_invocation
@click.pass_context
def doctor(ctx: click.Context, invocation: Invocation, as_json: bool) -> None:
    """Check Python, packages, servers, ports, GPU, memory, disk, and the services of a running farm.

    Exits with 1 when anything failed. Next: `ndif start`.
    """
    checks = list(examine(invocation.settings()))
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        print_table([asdict(check) for check in checks], ("verdict", "name", "sentence"))
    if any(check.verdict is Verdict.FAIL for check in checks):
        ctx.exit(1)


def examine(settings: Settings) -> Iterator[Check]:
    """Every check, in the order a person would look."""
    running = session.read(settings.session_dir) is not None
    yield _python()
    yield from _packages()
    yield _binary("valkey-server", binaries.valkey_server, settings.broker_url, running)
    yield _binary("weed", binaries.weed, settings.object_store_url, running)
    if not running:
        yield from _ports(settings)
    yield _keys(settings)
    yield from _jail(settings)
    yield _gpu()
    yield _memory()
    yield _disk("session disk", settings.session_root)
    yield _disk("model disk", settings.hf_home)
    if running:
        yield from _services(settings)
    else:
        yield from _remote_services(settings)


def _python() -> Check:
    wanted = SpecifierSet(metadata.metadata("ndif")["Requires-Python"])
    here = platform.python_version()
    if wanted.contains(here):
        return Check(Verdict.OK, "python", f"Python {here} at {sys.executable}.")
    return Check(Verdict.FAIL, "python", f"Python {here} is not {wanted}; make the environment with another.")


def _packages() -> Iterator[Check]:
    """The packages this farm declares, at versions that work together; the important ones by name."""
    for text in metadata.requires("ndif") or []:
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        check = _package(wanted)
        if check.verdict is not Verdict.OK or wanted.name in ("nnsight", "transformers", "torch", "celery"):
            yield check


def _package(wanted: Requirement) -> Check:
    try:
        here = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return Check(Verdict.FAIL, wanted.name, f"{wanted.name} is missing; `pip install '{wanted}'`.")
    if wanted.specifier.contains(here, prereleases=True):
        return Check(Verdict.OK, wanted.name, f"{wanted.name} {here}.")
    return Check(Verdict.FAIL, wanted.name, f"{wanted.name} {here} does not work here; `pip install '{wanted}'`.")


def _binary(name: str, find: Callable[[], Path], elsewhere: str, running: bool) -> Check:
    if elsewhere and not running:
        return Check(Verdict.OK, name, "Not needed; its address is set to elsewhere.")
    try:
        found = find()
    except SettingError as error:
        return Check(Verdict.FAIL, name, str(error))
    if os.access(found, os.X_OK):
        return Check(Verdict.OK, name, f"{found}.")
    return Check(Verdict.FAIL, name, f"{found} cannot be executed.")


def _ports(settings: Settings) -> Iterator[Check]:
    wanted = [("NDIF_API_PORT", settings.api_host, settings.api_port)]
    if not settings.broker_url:
        wanted.append(("NDIF_BROKER_PORT", "127.0.0.1", settings.broker_port))
    if not settings.object_store_url:
        wanted.append(("NDIF_OBJECT_STORE_PORT", "127.0.0.1", settings.object_store_port))
    for variable, host, port in wanted:
        try:
            ports.claim(host, port, variable)
            sentence = f"{variable}={port} is free." if port else f"{variable}=0 takes a free one."
            yield Check(Verdict.OK, "port", sentence)
        except SettingError as error:
            yield Check(Verdict.FAIL, "port", str(error))


def _keys(settings: Settings) -> Check:
    try:
        plan.check_key(settings)
    except SettingError as error:
        return Check(Verdict.FAIL, "keys", str(error))
    return Check(Verdict.OK, "keys", "Everybody is the one developer." if settings.dev_mode else "One key is accepted.")


def _jail(settings: Settings) -> Iterator[Check]:
    """Each wall that is to stand around a job: whether it goes up here, and whether replicas start without it."""
    from ndif_tasks.sandbox import jail, places, policy

    try:
        required = jail.required(settings)
        loaded = policy.load(settings.sandbox_policy)
    except SettingError as error:
        yield Check(Verdict.FAIL, "jail", str(error))
        return
    limits = ", ".join(f"{name} {value}" for name, value in loaded.default if value is not None)
    tags = f"; others for {', '.join(loaded.tags)}" if loaded.tags else ""
    yield Check(Verdict.OK, "policy", f"{settings.sandbox_policy or 'The one that ships'}: {limits}{tags}.")
    for name, standing in jail.examine(places.python()).items():
        if not jail.is_refused({name: standing}, name):
            yield Check(Verdict.OK, f"wall {name}", f"{_needed(name, required)} It goes up here: {standing}.")
        elif name in required:
            yield Check(Verdict.FAIL, f"wall {name}", f"Replicas do not start without it, {standing}.")
        else:
            yield Check(Verdict.WARN, f"wall {name}", f"Jobs run without it, {standing}.")


def _needed(wall: str, required: Sequence[str]) -> str:
    return "Required." if wall in required else "Not required."


def _gpu() -> Check:
    try:
        line = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return Check(Verdict.OK, "gpu", f"No NVIDIA driver; replicas run on {os.cpu_count()} CPU cores.")
    gpus = Path("/proc/driver/nvidia/gpus")
    count = len(list(gpus.iterdir())) if gpus.is_dir() else 0
    if not count:
        return Check(Verdict.WARN, "gpu", "The NVIDIA driver sees no GPU; replicas run on the CPU.")
    if "+cpu" in metadata.version("torch"):
        return Check(Verdict.WARN, "gpu", f"{count} GPU(s), but torch is a CPU build; install one for CUDA.")
    return Check(Verdict.WARN, "gpu", f"{count} GPU(s), {line.partition(': ')[2] or line}; unverified on GPU.")


def _memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    verdict = Verdict.OK if memory.available >= _LEAST_MEMORY_BYTES else Verdict.WARN
    return Check(verdict, "memory", f"{size(memory.available)} of {size(memory.total)} is free.")


def _disk(name: str, path: Path) -> Check:
    """Space and the right to write where ``path`` is, or where it would be made."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    variable = "NDIF_SESSION_ROOT" if name == "session disk" else "HF_HOME"
    if not os.access(there, os.W_OK | os.X_OK):
        return Check(Verdict.FAIL, name, f"{there} cannot be written; set {variable} to another folder.")
    free = shutil.disk_usage(there).free
    verdict = Verdict.OK if free >= _LEAST_DISK_BYTES else Verdict.WARN
    return Check(verdict, name, f"{size(free)} is free at {path}.")


def _services(settings: Settings) -> Iterator[Check]:
    record = session.read(settings.session_dir) or {"services": {}}
    for name, entry in record["services"].items():
        verdict = Verdict.OK if entry["state"] == "ready" else Verdict.FAIL
        again = f", started again {entry['restarts']} times" if entry["restarts"] else ""
        yield Check(verdict, name, f"Its process is {entry['state']}{again}; `ndif logs {name}` shows its log.")
    yield from _remote_services(settings)
    if plan.API in record["services"]:
        yield _answer("api", probes.http_status(settings.url, "/ping"), f"{settings.url}/ping")
        yield _answer("workers", probes.http_status(settings.url, "/connected", 5.0), f"{settings.url}/connected")


def _remote_services(settings: Settings) -> Iterator[Check]:
    """The stores the settings name, wherever they run."""
    for variable, reason in probes.unreached(settings):
        yield _reached(variable, reason)
    policy = probes.eviction_policy(settings) if settings.broker_url else None
    if policy not in ("noeviction", None):
        yield Check(Verdict.FAIL, "broker policy", f"maxmemory-policy is {policy}, and must be noeviction.")


def _reached(what: str, reason: str | None) -> Check:
    if reason is None:
        return Check(Verdict.OK, what, "It answers.")
    return Check(Verdict.FAIL, what, f"It cannot be used: {reason.rstrip('.')}.")


def _answer(name: str, status: int | None, url: str) -> Check:
    return _reached(name, None if status == 200 else f"status {status or 'none'} from {url}")
