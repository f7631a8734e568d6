"""The supervisor and the real services: ready in time, started again when they die, gone when it ends in any way."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from redis import Redis

from ndif_models import session
from ndif_web.cli import ports
from ndif_web.cli.lifeline import held
from ndif_web.cli.plan import kept_store_ports
from tests import models

#: On a machine that does nothing else; where others keep the cores busy it takes as much longer.
SECRETS = ("NDIF_OBJECT_STORE_SECRET_KEY", "NDIF_SIGNING_KEY")


class Machine:
    """A session of its own, with free ports, and ``ndif`` run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("NDIF_", "HF_"))}
        self.env |= {"NDIF_SESSION_ROOT": str(folder), "HF_HOME": str(folder / "hf")}
        self.env |= {f"NDIF_{name}_PORT": "0" for name in ("API", "BROKER", "OBJECT_STORE")}

    @property
    def session_dir(self) -> Path:
        return self.folder / "default"

    @property
    def record(self) -> dict[str, Any]:
        found = session.read(self.session_dir)
        assert found is not None, "no farm runs"
        return found

    def variable(self, name: str) -> str:
        return str(self.record["variables"][name])

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", "from ndif_web.cli import main; main()", *arguments]

    def ndif(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = self.env | variables
        return subprocess.run(
            self.command(*arguments), env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120
        )

    def start(self, *arguments: str) -> None:
        result = self.ndif("start", *arguments, "--detach")
        assert result.returncode == 0, result.stderr

    def deploy(self) -> None:
        result = self.ndif("deploy", models.GPT2)
        assert result.returncode == 0, result.stderr

    def replicas(self) -> list[str]:
        """The ids of the replicas that are hot."""
        entries = json.loads(self.ndif("status", "--json").stdout)["deployments"].values()
        return [entry["replica_id"] for entry in entries if entry["application_state"] == "RUNNING"]

    def replica(self) -> str:
        """The id of the one replica, which is hot."""
        (only,) = self.replicas()
        return only

    def services(self) -> dict[str, dict[str, Any]]:
        result = self.ndif("info", "--json")
        return {entry["service"]: entry for entry in json.loads(result.stdout)["services"]}

    def ports(self) -> list[int]:
        urls = [self.record["variables"][f"NDIF_{name}_URL"] for name in ("API", "BROKER", "OBJECT_STORE")]
        inner = kept_store_ports(self.session_dir)
        return [int(match[1]) for url in urls if (match := re.search(r":(\d+)(/|$)", url))] + inner

    def processes(self) -> list[int]:
        """Everything of this session: what has its folder in the environment (Valkey overwrites its own)."""
        mark = f"NDIF_SESSION_ROOT={self.folder}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def clean(self) -> bool:
        return not self.processes()


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    made = Machine(folder)
    try:
        yield made
    finally:
        made.ndif("stop", "--force")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One whole farm for the tests that leave it whole."""
    with machine(tmp_path_factory.mktemp("farm")) as made:
        models.hold("gpt2", "tiny", made.folder / "made", made.folder / "hf")
        made.start()
        yield made


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Machine]:
    """A session in which nothing runs yet."""
    with machine(tmp_path) as made:
        yield made


def eventually(true: Callable[[], bool], limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def child(leash: int) -> int:
    """The command on a leash."""
    return int(Path(f"/proc/{leash}/task/{leash}/children").read_text().split()[0])


def test_every_service_is_ready(farm: Machine) -> None:
    services = farm.services()
    assert list(services) == ["broker", "object-store", "api", "beat", "control", "agent"]
    assert {entry["state"] for entry in services.values()} == {"ready"}


def test_the_doctor_finds_nothing_wrong_with_it(farm: Machine) -> None:
    result = farm.ndif("doctor", "--json")
    assert [check for check in json.loads(result.stdout) if check["verdict"] == "fail"] == []
    assert result.returncode == 0


def test_a_second_start_is_refused_and_says_how_to_stop(farm: Machine) -> None:
    result = farm.ndif("start")
    assert result.returncode == 1
    assert result.stderr == f"Error: A farm already runs in the session {farm.session_dir}; `ndif stop` stops it.\n"


def test_only_this_user_can_read_the_session(farm: Machine) -> None:
    assert farm.session_dir.stat().st_mode & 0o077 == 0
    private = ["session.json", "secrets.json", "broker/valkey.conf", "object-store/s3.json"]
    private += ["object-store/security.toml", "logs/broker.log", "logs/supervisor.log"]
    assert [name for name in private if (farm.session_dir / name).stat().st_mode & 0o077] == []


def test_no_secret_is_in_any_argument(farm: Machine) -> None:
    secrets = [farm.variable(name) for name in SECRETS]
    secrets.append(json.loads((farm.session_dir / "secrets.json").read_text())["broker_password"])
    arguments = [Path(f"/proc/{pid}/cmdline").read_text() for pid in farm.processes()]
    assert len(arguments) > 10
    assert [line for line in arguments if any(secret in line for secret in secrets)] == []


def test_info_tells_no_secret(farm: Machine) -> None:
    password = json.loads((farm.session_dir / "secrets.json").read_text())["broker_password"]
    assert password not in farm.ndif("info").stdout + farm.ndif("info", "--json").stdout


def test_everything_listens_on_loopback_only(farm: Machine) -> None:
    wanted = {f"{port:04X}" for port in farm.ports()}
    listeners = []
    for table_ in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table_).read_text().splitlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A" and port in wanted:
                listeners.append(address)
    assert len(listeners) >= len(wanted)
    assert set(listeners) == {"0100007F"}


def test_the_inside_of_the_object_store_hands_nothing_out(farm: Machine) -> None:
    s3(farm).put_object(Bucket="ndif-results", Key="private", Body=b"x" * 100_000)
    filer = kept_store_ports(farm.session_dir)[4]
    with socket.create_connection(("127.0.0.1", filer)) as client:
        client.sendall(b"GET /buckets/ndif-results/private HTTP/1.0\r\n\r\n")
        assert b" 401 " in client.recv(4096)


def test_no_service_has_torch_in_memory(farm: Machine) -> None:
    maps = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in farm.processes()}
    assert [pid for pid, text in maps.items() if "libtorch" in text] == []


def test_a_service_that_dies_is_started_again_and_said_so(farm: Machine) -> None:
    client = Redis.from_url(farm.variable("NDIF_BROKER_URL"))
    client.set("kept", "yes")
    os.kill(child(farm.record["services"]["broker"]["pid"]), signal.SIGKILL)
    eventually(lambda: farm.record["services"]["broker"]["restarts"] == 1)
    eventually(lambda: farm.record["services"]["broker"]["state"] == "ready")
    assert client.get("kept") == b"yes"
    log = (farm.session_dir / "logs/supervisor.log").read_text()
    assert "broker ended (status 137); starting it again in 0.5 s." in log


def test_a_stopped_service_stays_stopped_until_it_is_started(farm: Machine) -> None:
    assert farm.ndif("stop", "beat").returncode == 0
    assert farm.services()["beat"]["state"] == "stopped"
    again = farm.ndif("stop", "beat")
    assert (again.returncode, again.stderr) == (1, "Error: beat is not running.\n")
    assert farm.ndif("start", "beat").stdout == "beat is ready.\n"
    assert farm.services()["beat"]["state"] == "ready"


def test_a_service_of_another_session_uses_the_broker_it_is_told(farm: Machine, bare: Machine) -> None:
    result = bare.ndif("start", "beat", "--detach", NDIF_BROKER_URL=farm.variable("NDIF_BROKER_URL"))
    assert result.returncode == 0, result.stderr
    assert list(bare.services()) == ["beat"]


def test_a_replica_goes_on_serving_while_its_agent_is_started_again(farm: Machine) -> None:
    farm.deploy()
    replica = farm.replica()
    agent = child(farm.record["services"]["agent"]["pid"])
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: farm.record["services"]["agent"]["restarts"] == 1)
    eventually(lambda: farm.record["services"]["agent"]["state"] == "ready")
    # A second one is started beside it, and not in its place.
    assert farm.ndif("deploy", models.GPT2, "--replicas", "2").returncode == 0
    assert replica in farm.replicas()
    assert len(farm.replicas()) == 2


def test_nothing_but_the_services_themselves_holds_the_lifeline(farm: Machine) -> None:
    """A job that could read from it could keep what it says from the leashes."""
    holders = [pid for pid in farm.processes() if held([farm.record["lifelines"][0]], f"{pid}")]
    arguments = [Path(f"/proc/{pid}/cmdline").read_text() for pid in holders]
    assert arguments
    assert [line for line in arguments if "zygote" in line] == []


def test_stop_leaves_no_process_and_no_port(farm: Machine) -> None:
    in_use, lifelines = farm.ports(), farm.record["lifelines"]
    assert all(listening(port) for port in in_use)
    assert farm.ndif("stop").stdout == "The farm is stopped.\n"
    assert farm.processes() == []
    assert not held(lifelines)
    assert [port for port in in_use if listening(port)] == []
    assert not (farm.session_dir / "session.json").exists()
    assert [port for port in in_use if list(Path("/tmp").glob(f"*{port}.sock"))] == []


def test_a_killed_supervisor_leaves_no_process_and_no_port(farm: Machine) -> None:
    farm.start()
    farm.deploy()
    in_use, lifelines = farm.ports(), farm.record["lifelines"]
    os.kill(farm.record["pid"], signal.SIGKILL)
    eventually(lambda: not held(lifelines), 8)
    eventually(farm.clean, 1)
    assert [port for port in in_use if listening(port)] == []


def test_what_was_stored_is_there_after_a_stop_and_after_a_kill(bare: Machine) -> None:
    bare.start("object-store")
    for ending in ("stop", "stop --force"):
        s3(bare).put_object(Bucket="ndif-results", Key=ending, Body=b"kept" * 1_000_000)
        assert bare.ndif(*ending.split()).returncode == 0
        bare.start("object-store")
        assert s3(bare).get_object(Bucket="ndif-results", Key=ending)["Body"].read() == b"kept" * 1_000_000


def test_a_service_alone_runs_alone_until_another_joins_it(bare: Machine) -> None:
    bare.start("broker")
    assert list(bare.services()) == ["broker"]
    assert bare.ndif("start", "beat").returncode == 0
    assert list(bare.services()) == ["broker", "beat"]


def test_in_the_foreground_a_signal_stops_it_well(bare: Machine) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        command = bare.command("start", "broker", "--verbose")
        with subprocess.Popen(command, env=bare.env, cwd=bare.folder, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            lines: list[str] = []
            while not lines or not lines[-1].startswith("Ready"):
                lines.append(running.stdout.readline())
                assert lines[-1]
            lifelines = bare.record["lifelines"]
            running.send_signal(number)
            lines += running.stdout.readlines()
        assert running.returncode == 0
        assert lines[-1] == "The farm is stopped.\n"
        assert any(line.startswith("broker        | ") and "ready to exit" in line for line in lines)
        assert not held(lifelines)


def test_a_taken_port_is_named_before_anything_starts(bare: Machine) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        result = bare.ndif("start", NDIF_API_PORT=str(port))
    assert result.returncode == 1
    assert result.stderr == f"Error: Port {port} is taken; set NDIF_API_PORT to another, or 0 for a free one.\n"
    assert not (bare.session_dir / "logs").exists()


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("NDIF_BROKER_URL", "redis://127.0.0.1:{port}/0"),
        ("NDIF_OBJECT_STORE_URL", "http://127.0.0.1:{port}"),
        ("NDIF_DATABASE_URL", "postgresql://me:secret@127.0.0.1:{port}/ndif"),
    ],
)
def test_what_runs_elsewhere_and_does_not_answer_is_named_before_anything_starts(
    bare: Machine, variable: str, url: str
) -> None:
    keys = {"NDIF_OBJECT_STORE_ACCESS_KEY": "a", "NDIF_OBJECT_STORE_SECRET_KEY": "secret"}
    result = bare.ndif("start", **{variable: url.format(port=ports.free(1)[0])}, **keys)
    assert result.returncode == 1
    assert result.stderr.startswith(f"Error: What {variable} names cannot be used: ")
    assert result.stderr.count("\n") == 1 and "secret" not in result.stderr
    assert not (bare.session_dir / "logs").exists()


def test_a_service_that_cannot_start_says_why_and_leaves_nothing(bare: Machine) -> None:
    in_the_way = bare.session_dir / "broker" / "appendonlydir"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("no folder")
    result = bare.ndif("start", "--detach")
    assert result.returncode == 1
    assert re.match(r"Error: \w+ ended before it was ready", result.stderr)
    assert "Traceback" not in result.stderr
    assert bare.processes() == []


def test_a_set_flag_reaches_the_services(bare: Machine) -> None:
    port = ports.free(1)[0]
    result = bare.ndif("--set", f"NDIF_BROKER_PORT={port}", "--set", "NDIF_LEASE_S=7.5", "start", "broker", "--detach")
    assert result.returncode == 0, result.stderr
    assert listening(port)
    environment = Path(f"/proc/{bare.record['services']['broker']['pid']}/environ").read_bytes()
    assert b"NDIF_LEASE_S=7.5" in environment.split(b"\0")


def s3(farm: Machine) -> Any:
    variables = farm.record["variables"]
    return boto3.client(
        "s3",
        endpoint_url=variables["NDIF_OBJECT_STORE_URL"],
        aws_access_key_id=variables["NDIF_OBJECT_STORE_ACCESS_KEY"],
        aws_secret_access_key=variables["NDIF_OBJECT_STORE_SECRET_KEY"],
        region_name="us-east-1",
    )
