"""What one session of a farm fixes before anything starts: its services, addresses, secrets and folders."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ndif_models.errors import SettingError
from ndif_models.settings import COMPLETE_VARIABLE, LOOPBACK, WILDCARDS, Settings
from ndif_tasks.sandbox import jail, policy

from . import binaries, ports

BROKER, OBJECT_STORE, API, BEAT, CONTROL, AGENT = "broker", "object-store", "api", "beat", "control", "agent"
#: Every service, in the order of starting.
NAMES = (BROKER, OBJECT_STORE, API, BEAT, CONTROL, AGENT)

#: The settings a session fixes, told to its processes and to every `ndif` of the same session.
_FIXED = (
    "api_host",
    "api_port",
    "api_url",
    "broker_url",
    "database_url",
    "object_store_url",
    "object_store_bucket",
    "object_store_access_key",
    "object_store_secret_key",
    "object_store_region",
    "object_store_public_url",
    "signing_key",
)
_STORE_PORTS = 7
_SECRETS = "secrets.json"
_PORTS, _STORE = "ports.json", "inside the object store"


@dataclass(frozen=True)
class Plan:
    """A session as it will run."""

    settings: Settings
    names: tuple[str, ...]
    store_ports: tuple[int, ...]
    broker_password: str

    @property
    def session_dir(self) -> Path:
        """The session's folder."""
        return self.settings.session_dir

    def variables(self) -> dict[str, str]:
        """What ``session.json`` tells the other processes of this machine."""
        everything = self.settings.environment()
        return {name: everything[name] for name in (f"NDIF_{field.upper()}" for field in _FIXED)}

    def environment(self) -> dict[str, str]:
        """The whole environment of a service."""
        # One thread each: services move messages, and their idle BLAS threads would only cost memory.
        light = {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"}
        around = {name: value for name, value in os.environ.items() if not self._is_own_hub(name, value)}
        return {**around, **self.settings.environment(), **light, COMPLETE_VARIABLE: "1"}

    def _is_own_hub(self, name: str, value: str) -> bool:
        """Whether a variable sends clients to this farm's Hub mirror: started beside them, it must not ask itself."""
        if name != "HF_ENDPOINT":
            return False
        asked, own = urlsplit(value), urlsplit(self.settings.url)
        here = asked.hostname in (own.hostname, *LOOPBACK)
        return here and asked.netloc.rpartition(":")[2] == str(own.port) and asked.path.rstrip("/") == "/hub"

    def folder(self, name: str) -> Path:
        """A private folder of the session, made when first asked for."""
        path = self.session_dir / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def log(self, service: str) -> Path:
        """Where a service's output goes."""
        return self.folder("logs") / f"{service}.log"


def make(settings: Settings, names: tuple[str, ...]) -> Plan:
    """Fix everything, having checked that each of ``names`` can start.

    Raises:
        SettingError: a port is taken, a binary or an address is missing.
    """
    names = tuple(name for name in NAMES if name in names)
    _check_addresses(settings, names)
    _check_binaries(names)
    kept = _secrets(private_folder(settings.session_dir))
    values: dict[str, object] = {"signing_key": settings.signing_key or kept["signing_key"]}
    if BROKER in names:
        port = _claim(settings, "127.0.0.1", "broker_port")
        values |= {"broker_port": port, "broker_url": f"redis://:{kept['broker_password']}@127.0.0.1:{port}/0"}
    if OBJECT_STORE in names:
        port = _claim(settings, "127.0.0.1", "object_store_port")
        values |= {
            "object_store_port": port,
            "object_store_url": f"http://127.0.0.1:{port}",
            "object_store_access_key": settings.object_store_access_key or kept["access_key"],
            "object_store_secret_key": settings.object_store_secret_key or kept["secret_key"],
        }
    if API in names:
        port = _claim(settings, settings.api_host or "127.0.0.1", "api_port")
        values |= {"api_port": port}
        if settings.api_host not in WILDCARDS:  # else each client's own address for the farm is the right one
            values |= {"api_url": dataclasses.replace(settings, api_port=port).url}
    fixed = dataclasses.replace(settings, **values)  # type: ignore[arg-type]
    _check_distinct(fixed, names)
    _check_jail(fixed, names)
    store_ports = _store_ports(settings.session_dir) if OBJECT_STORE in names else ()
    return Plan(fixed, names, store_ports, kept["broker_password"])


def extended(made: Plan, name: str) -> Plan:
    """The plan of a running session with one service more.

    Raises:
        SettingError: that service cannot start.
    """
    more = make(made.settings, (name,))
    return dataclasses.replace(more, names=(*made.names, name), store_ports=more.store_ports or made.store_ports)


def local_names(settings: Settings) -> tuple[str, ...]:
    """The services a whole farm needs from this machine: all whose address is not set to elsewhere."""
    elsewhere = {BROKER: settings.broker_url, OBJECT_STORE: settings.object_store_url}
    return tuple(name for name in NAMES if not elsewhere.get(name))


def check_key(settings: Settings) -> None:
    """Refuse a farm that nobody could use.

    Raises:
        SettingError: no key would be accepted.
    """
    if not settings.dev_mode and not settings.api_key:
        raise SettingError("NDIF_DEV_MODE is false and NDIF_API_KEY is not set: this farm would accept no key at all.")


def _check_addresses(settings: Settings, names: tuple[str, ...]) -> None:
    if API in names:
        check_key(settings)
    for name, url in ((BROKER, "broker_url"), (OBJECT_STORE, "object_store_url")):
        if name in names and getattr(settings, url):
            raise SettingError(f"NDIF_{url.upper()} is set to another {name}; unset it to start one here.")
    needs_broker = any(name in names for name in (API, BEAT, CONTROL, AGENT))
    if needs_broker and BROKER not in names and not settings.broker_url:
        raise SettingError("NDIF_BROKER_URL is not set, and no farm runs in this session to take it from.")
    needs_store = any(name in names for name in (API, CONTROL))
    if needs_store and OBJECT_STORE not in names and not settings.object_store_url:
        raise SettingError("NDIF_OBJECT_STORE_URL is not set, and no farm runs in this session to take it from.")


def _check_jail(settings: Settings, names: tuple[str, ...]) -> None:
    """What each replica would refuse, refused before anything starts."""
    if AGENT in names:
        jail.required(settings)
        policy.load(settings.sandbox_policy)


def _check_distinct(settings: Settings, names: tuple[str, ...]) -> None:
    """Two services told to use one port would each find it free."""
    users: dict[int, str] = {}
    for name, field in ((API, "api_port"), (BROKER, "broker_port"), (OBJECT_STORE, "object_store_port")):
        other = users.setdefault(getattr(settings, field), field) if name in names else field
        if other != field:
            raise SettingError(f"NDIF_{field.upper()} and NDIF_{other.upper()} name the same port; change one of them.")


def _check_binaries(names: tuple[str, ...]) -> None:
    if BROKER in names:
        binaries.valkey_server()
    if OBJECT_STORE in names:
        binaries.weed()


def private_folder(path: Path) -> Path:
    """Make a folder that only this user can enter."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise SettingError(f"{path} cannot be used ({error.strerror}); set NDIF_SESSION_ROOT to another.") from None
    return path


def _secrets(folder: Path) -> Mapping[str, str]:
    """The session's secrets, made once: data written under them is read again after a restart."""
    path = folder / _SECRETS
    names = ("broker_password", "access_key", "secret_key", "signing_key")
    try:
        kept: dict[str, str] = dict(json.loads(path.read_text())) if path.is_file() else {}
    except (ValueError, TypeError):
        raise SettingError(f"{path} is damaged; put it back, or remove the session {folder} and start anew.") from None
    if not all(name in kept for name in names):
        kept = {name: secrets.token_hex(24) for name in names} | kept
        write_private(path, json.dumps(kept))
    return kept


def _claim(settings: Settings, host: str, field: str) -> int:
    """The port of a setting; a free one is the same after a restart where it can be: URLs of before lead there too."""
    kept = _kept_ports(settings.session_dir, field)
    port = ports.claim(host, getattr(settings, field), f"NDIF_{field.upper()}", *kept)
    if [port] != kept:
        _keep_ports(settings.session_dir, field, [port])
    return port


def _store_ports(folder: Path) -> tuple[int, ...]:
    """Ports inside the object store, the same after a restart where they can be: it names its volumes by them."""
    kept = kept_store_ports(folder)
    if len(kept) != _STORE_PORTS or not all(ports.is_free("127.0.0.1", port) for port in kept):
        kept = ports.free(_STORE_PORTS)
        _keep_ports(folder, _STORE, kept)
    return tuple(kept)


def kept_store_ports(folder: Path) -> list[int]:
    """The ports that the session's object store had last; empty when it had none."""
    return _kept_ports(folder, _STORE)


def _kept_ports(folder: Path, name: str) -> list[int]:
    path = folder / _PORTS
    kept: list[int] = json.loads(path.read_text()).get(name, []) if path.is_file() else []
    return kept


def _keep_ports(folder: Path, name: str, wanted: list[int]) -> None:
    path = folder / _PORTS
    everything = json.loads(path.read_text()) if path.is_file() else {}
    write_private(path, json.dumps(everything | {name: wanted}))


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    os.replace(scratch, path)
