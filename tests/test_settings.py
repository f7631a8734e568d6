"""Settings: one table, one precedence, errors that name the variable."""

from __future__ import annotations

import os
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from ndif_models import session
from ndif_models.errors import SettingError
from ndif_models.settings import Settings, load, table, variable

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a .env file."""
    monkeypatch.chdir(tmp_path)


def from_environment(**environ: str) -> Settings:
    return load(environ=environ, running_session=False)


def test_every_source_overrides_the_ones_below_it(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    folder = root / "default"
    folder.mkdir(parents=True)
    named = tmp_path / "named.env"
    environ = {"NDIF_SESSION_ROOT": str(root)}
    pid = os.getpid()
    session.write(
        folder,
        {
            "pid": pid,
            "start_time": session.process_start_time(pid),
            "variables": {"NDIF_API_PORT": "1"},
            "services": {},
        },
    )
    assert load(environ=environ).api_port == 1
    (tmp_path / ".env").write_text("NDIF_API_PORT=2\n")
    assert load(environ=environ).api_port == 2
    named.write_text("NDIF_API_PORT=3\n")
    assert load(environ=environ, env_file=named).api_port == 3
    environ["NDIF_API_PORT"] = "4"
    assert load(environ=environ, env_file=named).api_port == 4
    assert load({"NDIF_API_PORT": "5"}, environ, named).api_port == 5


def test_a_session_whose_supervisor_is_gone_sets_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "default"
    folder.mkdir()
    session.write(folder, {"pid": 1, "start_time": -1, "variables": {"NDIF_API_PORT": "1"}, "services": {}})
    assert load(environ={"NDIF_SESSION_ROOT": str(tmp_path)}).api_port == 5001


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("NDIF_API_PORT", "many", "a whole number"),
        ("NDIF_DEV_MODE", "perhaps", "true or false"),
        ("NDIF_LEASE_S", "soon", "a number"),
    ],
)
def test_an_impossible_value_names_its_variable(name: str, text: str, kind: str) -> None:
    with pytest.raises(SettingError, match=f"{name} must be {kind}, and is '{text}'"):
        from_environment(**{name: text})


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert from_environment(NDIF_API_PORT="").api_port == 5001


def test_a_child_given_the_environment_has_the_same_settings() -> None:
    made = from_environment(NDIF_DEV_MODE="false", NDIF_LEASE_S="2.5", NDIF_SESSION_ROOT="~/elsewhere")
    assert load(environ=made.environment(), running_session=False) == made


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        from_environment().api_port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:7"), ("::1", "http://[::1]:7"), ("10.0.0.1", "http://10.0.0.1:7")]
)
def test_the_url_follows_the_address(host: str, url: str) -> None:
    assert from_environment(NDIF_API_HOST=host, NDIF_API_PORT="7").url == url


def test_every_setting_has_help_and_a_name_of_its_own() -> None:
    rows = list(table())
    assert len({name for name, *_ in rows}) == len(rows) == len(fields(Settings))
    assert all(help_text.endswith(".") for *_, help_text in rows)


def test_no_secret_has_a_default() -> None:
    assert all(f.default == "" for f in fields(Settings) if f.metadata["secret"])


def test_the_readme_documents_every_setting() -> None:
    text = (ROOT / "README.md").read_text()
    assert [variable(f) for f in fields(Settings) if f"`{variable(f)}`" not in text] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NDIF_MAX_ATTEMPTS", "0"),
        ("NDIF_LEASE_S", "-5"),
        ("NDIF_DEFAULT_EXECUTION_TIMEOUT_SECONDS", "nan"),
        ("NDIF_API_PORT", "70000"),
        ("NDIF_LOG_LEVEL", "loud"),
        ("NDIF_SESSION", "../elsewhere"),
        ("NDIF_NODE_NAME", "a b,c"),
        ("NDIF_API_KEY", "é"),
        ("NDIF_API_KEY", "x\ny"),
    ],
)
def test_an_impossible_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=name):
        load(environ={name: value}, running_session=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NDIF_API_URL", "http://[::1"),
        ("NDIF_BROKER_URL", "nonsense"),
        ("NDIF_BROKER_URL", "redis://"),
        ("NDIF_OBJECT_STORE_URL", "10.0.0.1:9000"),
        ("NDIF_OBJECT_STORE_PUBLIC_URL", "http://10.0.0.1:port"),
        ("NDIF_DATABASE_URL", "mysql://me:hunter2@10.0.0.1/ndif"),
    ],
)
def test_what_is_no_url_is_refused_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"{name} must be a URL such as") as refused:
        from_environment(**{name: value})
    assert "hunter2" not in str(refused.value)


def test_a_bucket_has_a_name_that_s3_takes() -> None:
    with pytest.raises(SettingError, match="NDIF_OBJECT_STORE_BUCKET"):
        from_environment(NDIF_OBJECT_STORE_BUCKET="My Bucket")


def test_postgresql_is_reached_through_the_driver_that_comes_with_the_farm() -> None:
    assert from_environment(NDIF_DATABASE_URL="postgresql://h/n").db_url == "postgresql+psycopg2://h/n"
    assert from_environment(NDIF_DATABASE_URL="postgresql+psycopg://h/n").db_url == "postgresql+psycopg://h/n"
