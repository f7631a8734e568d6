"""A real farm for tests: ``ndif start`` in a temporary session on free ports, driven by the real ``ndif`` command."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis

from ndif_models.session import read

FREE_PORTS = {"NDIF_API_PORT": "0", "NDIF_BROKER_PORT": "0", "NDIF_OBJECT_STORE_PORT": "0"}


@dataclass
class Farm:
    """One running farm and the folder it lives in."""

    home: Path
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def hf_home(self) -> Path:
        """Where the farm holds models."""
        return self.home / "hf"

    @property
    def session_dir(self) -> Path:
        """The farm's session folder."""
        return self.home / "sessions" / "default"

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which commands find this farm, and nothing of the user's."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NDIF_", "HF_"))}
        own = {"NDIF_SESSION_ROOT": str(self.home / "sessions"), "HF_HOME": str(self.hf_home), "NDIF_NODE_NAME": "test"}
        return {**kept, **FREE_PORTS, **own, "NDIF_REPLICA_THREADS": "2", **self.extra}

    @property
    def record(self) -> dict[str, Any]:
        """What the running session says of itself."""
        found = read(self.session_dir)
        assert found is not None, "the farm is not running"
        return found

    @property
    def variables(self) -> dict[str, str]:
        """The addresses and keys of the running session."""
        return dict(self.record["variables"])

    @property
    def url(self) -> str:
        """The web tier."""
        return self.variables["NDIF_API_URL"].rstrip("/")

    def redis(self) -> redis.Redis:
        """A connection to the farm's broker."""
        return redis.Redis.from_url(self.variables["NDIF_BROKER_URL"])

    def ndif(self, *args: str, check: bool = True, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run an ``ndif`` command against this farm."""
        argv = [sys.executable, "-m", "ndif_web.cli", *args]
        done = subprocess.run(
            argv, env=self.environment, cwd=self.home, capture_output=True, text=True, timeout=timeout_s
        )
        assert not check or done.returncode == 0, f"{args}: {done.stdout}\n{done.stderr}\n{self.logs()}"
        return done

    def start(self) -> Farm:
        """Start it and wait until it is ready."""
        self.hf_home.mkdir(parents=True, exist_ok=True)
        self.ndif("start", "--detach")
        return self

    def stop(self) -> None:
        """Stop it."""
        self.ndif("stop", check=False)

    def logs(self) -> str:
        """The end of every log, for a failure's report."""
        logs = sorted((self.session_dir / "logs").glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def service_pid(self, name: str) -> int:
        """The pid of a service's leash."""
        return int(self.record["services"][name]["pid"])

    def get(self, path: str, **kwargs: Any) -> Any:
        """GET a JSON answer."""
        answer = httpx.get(f"{self.url}{path}", timeout=30, **kwargs)
        answer.raise_for_status()
        return answer.json()

    def replicas(self, repo_id: str) -> list[dict[str, Any]]:
        """The entries of ``/status`` for one model."""
        return [one for one in self.get("/status")["deployments"].values() if one["repo_id"] == repo_id]


def wait_until(condition: Callable[[], Any], timeout_s: float = 30, what: str = "") -> Any:
    """The first true value of a condition that only another process can change; fails after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or condition}"
        time.sleep(0.05)


def descendants_of_session(session_dir: Path) -> list[tuple[int, str]]:
    """Processes that belong to a session: its folder is in their environment or arguments."""
    found = []
    mark = str(session_dir.parent).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark in text:
                found.append((int(entry.name), (entry / "cmdline").read_text().replace("\0", " ")))
    return found


@contextlib.contextmanager
def serving(farm: Farm, *repo_ids: str) -> Iterator[Farm]:
    """The farm, started and with these models deployed; stopped afterwards."""
    farm.start()
    try:
        farm.ndif("deploy", *repo_ids)
        yield farm
    finally:
        farm.stop()


def beneath(process: psutil.Process) -> Iterator[tuple[str, psutil.Process]]:
    """What a process has started, and that in turn, with their names; those that end meanwhile are left out."""
    for one in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield one.name(), one


def as_json(text: str) -> Any:
    """Parse what a ``--json`` command printed."""
    return json.loads(text)
