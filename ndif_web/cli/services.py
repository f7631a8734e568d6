"""The table of services: how each is prepared, started and asked whether it is ready."""

from __future__ import annotations

import contextlib
import hmac
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import binaries, probes
from .plan import AGENT, API, BEAT, BROKER, CONTROL, OBJECT_STORE, Plan, kept_store_ports, write_private


@dataclass(frozen=True)
class Service:
    """One process of the stack.

    Attributes:
        prepare: writes what it needs; returns its arguments.
        probe: says whether it answers.
        address: where it is, for people.
        needs: the services that must be ready before its first start.
        grace_s: how long it may take from TERM to its end.
        ready_limit_s: how long it may take from its start to its first answer.
        cwd: the folder of the session it runs in, where it matters.
        spare_leashes: what it started on the lifeline outlives it, though not the session.
    """

    name: str
    prepare: Callable[[Plan], list[str]]
    probe: Callable[[Plan], bool]
    address: Callable[[Plan], str]
    needs: tuple[str, ...] = ()
    grace_s: float = 3.0
    ready_limit_s: float = 60.0
    cwd: str = ""
    spare_leashes: bool = False


def _broker(plan: Plan) -> list[str]:
    folder = plan.folder(BROKER)
    quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        "bind 127.0.0.1",
        f"port {plan.settings.broker_port}",
        f"requirepass {plan.broker_password}",
        f'dir "{quoted}"',
        "appendonly yes",
        "appendfsync always",
        'save ""',
        "maxmemory-policy noeviction",
        "daemonize no",
    ]
    write_private(folder / "valkey.conf", "\n".join(lines) + "\n")
    return [str(binaries.valkey_server()), str(folder / "valkey.conf")]


def _object_store(plan: Plan) -> list[str]:
    folder = plan.folder(OBJECT_STORE)
    (folder / "data").mkdir(mode=0o700, exist_ok=True)
    settings = plan.settings
    credentials = {"accessKey": settings.object_store_access_key, "secretKey": settings.object_store_secret_key}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identities = {"identities": [{"name": "ndif", "credentials": [credentials], "actions": actions}]}
    write_private(folder / "s3.json", json.dumps(identities))
    write_private(folder / "security.toml", _store_inner_keys(settings.object_store_secret_key))
    flags = {
        "dir": "data",
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "filer": "true",
        "filer.localSocket": "filer.sock",
        "s3": "true",
        "s3.config": "s3.json",
        "s3.iam": "false",
        "s3.localSocket": "s3.sock",
        "s3.port": settings.object_store_port,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        # A single master elects itself at once; a lone one with peers takes two seconds, and its volumes may miss it.
        "master.peers": "none",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 1024,
        "volume.max": 0,
        "volume.preStopSeconds": 0,
    }
    inner = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    flags |= dict(zip((*inner, "s3.port.grpc"), plan.store_ports, strict=True))
    return [str(binaries.weed()), "-logtostderr=true", "server", *(f"-{name}={value}" for name, value in flags.items())]


def _store_inner_keys(secret: str) -> str:
    """Keys between the store's own parts: without them its inner ports would hand any local user any object."""
    sections = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
    lines: list[str] = []
    for section in sections:
        key = hmac.new(secret.encode(), section.encode(), "sha256").hexdigest()
        lines += [f"[{section}]", f'key = "{key}"', "expires_after_seconds = 60"]
    return "\n".join(lines) + "\n"


def _api(_plan: Plan) -> list[str]:
    return [sys.executable, "-m", "gunicorn", "-c", "python:ndif_web.gunicorn_conf", "ndif_web.app:create_app()"]


def _celery(plan: Plan, *arguments: str) -> list[str]:
    level = plan.settings.log_level.lower()
    return [sys.executable, "-m", "celery", "-A", "ndif_tasks", *arguments, "--loglevel", level]


def _beat(plan: Plan) -> list[str]:
    schedule = plan.folder(BEAT) / "schedule"
    return _celery(plan, "beat", "--schedule", str(schedule), "--pidfile", "")


def _worker(plan: Plan, name: str, queue: str) -> list[str]:
    quiet = ("--without-gossip", "--without-mingle", "--concurrency", "4")
    return _celery(plan, "worker", "-Q", queue, "-n", f"{name}@%h", *quiet)


def _control(plan: Plan) -> list[str]:
    return _worker(plan, CONTROL, "control")


def _agent(plan: Plan) -> list[str]:
    return _worker(plan, AGENT, f"node.{plan.settings.node_name}")


def _loopback(port: int) -> str:
    return f"127.0.0.1:{port}"


SERVICES = {
    service.name: service
    for service in (
        Service(
            BROKER,
            _broker,
            probes.broker,
            lambda plan: _loopback(plan.settings.broker_port),
            # It first reads back everything it held.
            ready_limit_s=600.0,
        ),
        Service(
            OBJECT_STORE,
            _object_store,
            probes.object_store,
            lambda plan: _loopback(plan.settings.object_store_port),
            # After that its filer only waits, 15 s, for its own streams to close; every answered write is on disk.
            grace_s=1.0,
            cwd=OBJECT_STORE,
        ),
        Service(API, _api, probes.api, lambda plan: plan.settings.url, needs=(BROKER,), grace_s=5.0),
        # Last: there is nothing to remind anybody of before the control worker listens.
        Service(BEAT, _beat, lambda plan: True, lambda plan: "", needs=(BROKER, CONTROL)),
        Service(CONTROL, _control, lambda plan: probes.worker(CONTROL), lambda plan: "queue control", needs=(BROKER,)),
        Service(
            AGENT,
            _agent,
            lambda plan: probes.worker(AGENT),
            lambda plan: f"queue node.{plan.settings.node_name}",
            needs=(BROKER,),
            # Replicas hold weights: an agent that is started again finds them still serving.
            spare_leashes=True,
        ),
    )
}


def clear_sockets(session_dir: Path) -> None:
    """Remove the sockets that a killed object store leaves in the temporary folder, where it insists on them."""
    ports = kept_store_ports(session_dir)
    for kind, port in zip(("master", "volume", "filer", "s3"), ports[1:6:2] + ports[6:], strict=False):
        with contextlib.suppress(OSError):
            Path(f"/tmp/seaweedfs-{kind}-grpc-{port}.sock").unlink()
