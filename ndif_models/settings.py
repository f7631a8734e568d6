"""Every setting of the farm: its variable, type, default, unit and help, in one frozen table.

Precedence: flag > environment > ``--env-file`` > ``./.env`` > the running session > default.
Nothing is read at import; a process builds its settings once, in its entry point, through :func:`settings`.
"""

from __future__ import annotations

import functools
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dotenv import dotenv_values

from .errors import SettingError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
LOG_LEVELS = ("debug", "info", "warning", "error")
#: What NDIF_API_HOST may be to listen on every address.
WILDCARDS = ("", "0.0.0.0", "::")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
ENV_FILE_VARIABLE = "NDIF_ENV_FILE"
#: Set for the farm's own processes, whose environment holds every setting they may know: nothing else is read.
COMPLETE_VARIABLE = "NDIF_SETTINGS_COMPLETE"


#: What a URL may begin with, and one such.
_HTTP = (("http", "https"), "http://10.0.0.1:9000")
_REDIS = (("redis", "rediss"), "redis://10.0.0.1:6379/0")
_DATABASE = (("sqlite", "postgresql"), "postgresql://user:password@10.0.0.1/ndif")


def _setting(default: Any, help: str, *, unit: str = "", env: str = "", **more: Any) -> Any:
    """One setting; ``more``: whether it is ``secret``, the ``least`` of a number, what kind of ``url`` it is."""
    more = {"secret": False, "least": 0, "url": None} | more
    return field(default=default, metadata={"help": help, "unit": unit, "env": env, **more})


@dataclass(frozen=True)
class Settings:
    """The farm's settings; one instance per process."""

    dev_mode: bool = _setting(True, "Accept any key, or none, as one named developer.")
    api_key: str = _setting(
        "", "The key `ndif` sends; with NDIF_DEV_MODE=false also the one key the farm accepts.", secret=True
    )
    session_root: Path = _setting(Path("~/.ndif/sessions"), "Where sessions (data, logs, pids, ports) are kept.")
    session: str = _setting("default", "The session's name: its folder under NDIF_SESSION_ROOT.")
    api_host: str = _setting("127.0.0.1", "The address the web tier listens on.")
    api_port: int = _setting(5001, "The port the web tier listens on; 0 takes a free one.")
    api_url: str = _setting(
        "", "The farm's URL as clients see it; from NDIF_API_HOST and NDIF_API_PORT unless set.", url=_HTTP
    )
    api_workers: int = _setting(1, "How many web processes share the port.", least=1)
    broker_url: str = _setting("", "A Redis or Valkey to use instead of starting one.", secret=True, url=_REDIS)
    broker_port: int = _setting(6379, "The port of the Valkey that `ndif start` runs; 0 takes a free one.")
    object_store_url: str = _setting("", "An S3 endpoint to use instead of starting one.", url=_HTTP)
    object_store_port: int = _setting(27018, "The port of the S3 store that `ndif start` runs; 0 takes a free one.")
    object_store_bucket: str = _setting("ndif-results", "The bucket for payloads and results.")
    object_store_access_key: str = _setting("", "S3 access key; made for the session unless set.", secret=True)
    object_store_secret_key: str = _setting("", "S3 secret key; made for the session unless set.", secret=True)
    object_store_region: str = _setting("us-east-1", "S3 region.")
    object_store_verify: bool = _setting(True, "Verify the S3 endpoint's TLS certificate.")
    object_store_public_url: str = _setting("", "The S3 endpoint as clients see it, where it differs.", url=_HTTP)
    database_url: str = _setting(
        "", "SQLAlchemy URL; a SQLite file in the session unless set.", secret=True, url=_DATABASE
    )
    signing_key: str = _setting("", "Signs sessions and result URLs; made for the session unless set.", secret=True)
    default_execution_timeout_seconds: float = _setting(3600.0, "How long one job may run.", unit="s", least=1)
    load_timeout_s: float = _setting(1800.0, "How long a model may take to load.", unit="s", least=1)
    max_request_bytes: int = _setting(256 * 2**20, "The largest request body.", unit="bytes", least=1)
    inline_payload_bytes: int = _setting(64 * 2**10, "Payloads up to this size stay in the broker.", unit="bytes")
    inline_result_bytes: int = _setting(8 * 2**20, "Results up to this size ride the client's socket.", unit="bytes")
    room_to_train: bool = _setting(
        True, "Serve a model only where a private copy of its weights fits too: a job that writes them all makes one."
    )
    result_ttl_s: int = _setting(86_400, "How long finished jobs and their results are kept.", unit="s", least=1)
    url_ttl_s: int = _setting(3600, "How long a signed result URL is good.", unit="s", least=1)
    max_attempts: int = _setting(3, "How often a job is tried when its replica dies.", least=1)
    cancel_on_disconnect: bool = _setting(
        False, "Cancel the jobs of a client that waits for them and is gone before they are over."
    )
    lease_s: float = _setting(15.0, "A running job not renewed for this long is tried again.", unit="s", least=1)
    replica_threads: int = _setting(0, "CPU threads of each replica's jobs; 0: all cores.")
    sandbox_require: str = _setting(
        "",
        "Walls of the jail, comma-separated, without which no replica starts; with NDIF_DEV_MODE=false all.",
    )
    sandbox_policy: str = _setting(
        "", "A YAML file of what one job may take, by its key's tags; the farm's own unless set."
    )
    node_name: str = _setting(socket.gethostname(), "This machine's name in the farm.")
    hub_serve_weights: bool = _setting(False, "Let the farm's Hub mirror serve weights too.")
    log_level: str = _setting("INFO", "debug, info, warning or error.")
    hf_token: str = _setting("", "Hugging Face token for downloads.", env="HF_TOKEN", secret=True)
    hf_home: Path = _setting(Path("~/.cache/huggingface"), "Where models are kept.", env="HF_HOME")

    @property
    def session_dir(self) -> Path:
        """The folder of this session."""
        return self.session_root / self.session

    @property
    def url(self) -> str:
        """Where this machine's tools reach the web tier, without a trailing slash."""
        if self.api_url:
            return self.api_url.rstrip("/")
        host = "127.0.0.1" if self.api_host in WILDCARDS else self.api_host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.api_port}"

    @property
    def db_url(self) -> str:
        """The database in use; without a driver named, PostgreSQL's is the one that comes with the farm."""
        url = self.database_url.replace("postgresql://", "postgresql+psycopg2://", 1)
        return url or f"sqlite:///{self.session_dir / 'ndif.db'}"

    def environment(self) -> dict[str, str]:
        """These settings as variables, for a child process."""
        return {variable(f): _text(getattr(self, f.name)) for f in fields(self)}


def variable(f: Field[Any]) -> str:
    """The environment variable of a field of :class:`Settings`."""
    return str(f.metadata["env"]) or f"NDIF_{f.name.upper()}"


def table() -> Iterator[tuple[str, str, str, str]]:
    """Yield (variable, default, unit, help) of every setting; secrets have no default."""
    for f in fields(Settings):
        default = "this machine's name" if f.name == "node_name" else _text(f.default)
        yield variable(f), default, f.metadata["unit"], f.metadata["help"]


def markdown() -> str:
    """The table as Markdown, for the README."""
    rows = [
        f"| `{name}` | {f'`{default}`' if default else ''} | {unit} | {help} |" for name, default, unit, help in table()
    ]
    return "\n".join(["| variable | default | unit | what it does |", "| --- | --- | --- | --- |", *rows])


def load(
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    env_file: Path | None = None,
    running_session: bool = True,
) -> Settings:
    """Build settings from all sources.

    Args:
        flags: values by variable name, as given on a command line.
        environ: the environment; ``os.environ`` unless given.
        env_file: a file of ``NAME=value`` lines; ``NDIF_ENV_FILE`` names one too.
        running_session: whether addresses of the running session fill what nothing else sets.

    Raises:
        SettingError: a value is not of its type; the sentence names the variable.
    """
    environ = os.environ if environ is None else environ
    if environ.get(COMPLETE_VARIABLE):
        return _resolve([flags or {}, environ])
    named = env_file or (Path(environ[ENV_FILE_VARIABLE]) if environ.get(ENV_FILE_VARIABLE) else None)
    if named is not None and not named.is_file():
        raise SettingError(f"The settings file {named} does not exist.")
    sources: list[Mapping[str, str | None]] = [flags or {}, environ]
    sources += [_file_values(path) for path in (named, Path(".env")) if path is not None and path.is_file()]
    found = _resolve(sources)
    if running_session:
        from .session import running_variables  # session files are read only on request

        found = _resolve([*sources, running_variables(found.session_dir)])
    return found


@functools.cache
def settings() -> Settings:
    """This process's settings, built on first use."""
    return load()


def _file_values(path: Path) -> Mapping[str, str | None]:
    try:
        return dotenv_values(path)
    except (OSError, UnicodeDecodeError):
        raise SettingError(f"The settings file {path.absolute()} cannot be read as UTF-8 text.") from None


def _resolve(sources: list[Mapping[str, str | None]]) -> Settings:
    values: dict[str, Any] = {}
    for f in fields(Settings):
        name = variable(f)
        for source in sources:
            text = source.get(name)
            if text is not None and text != "":
                values[f.name] = _checked(name, f.metadata, _parse(name, f.default, text))
                break
    return _expanded(Settings(**values))


def _expanded(found: Settings) -> Settings:
    paths = {
        f.name: getattr(found, f.name).expanduser().absolute()
        for f in fields(found)
        if isinstance(getattr(found, f.name), Path)
    }
    return Settings(**{**{f.name: getattr(found, f.name) for f in fields(found)}, **paths})


def _parse(name: str, default: Any, text: str) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        return type(default)(text) if not isinstance(default, Path) else Path(text)
    except (ValueError, KeyError):
        kind = {"bool": "true or false", "int": "a whole number", "float": "a number"}[type(default).__name__]
        raise SettingError(f"{name} must be {kind}, and is {text!r}.") from None


def _checked(name: str, facts: Mapping[str, Any], value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not (value >= facts["least"] and value < float("inf")):
        raise SettingError(f"{name} must be at least {facts['least']:g}, and is {value:g}.")
    if facts["url"] and not _is_url(value, facts["url"][0]):
        raise SettingError(f"{name} must be a URL such as {facts['url'][1]}.")
    if name in ("NDIF_SESSION", "NDIF_NODE_NAME") and not _NAME.fullmatch(value):
        raise SettingError(
            f"{name} must be a name of letters, digits, dots, hyphens and underscores, and is {value!r}."
        )
    if name == "NDIF_API_KEY" and not (value.isascii() and value.isprintable()):
        raise SettingError(f"{name} must be plain ASCII characters; it travels in an HTTP header.")
    if name == "NDIF_OBJECT_STORE_BUCKET" and not _BUCKET.fullmatch(value):
        raise SettingError(f"{name} must be 3 to 63 small letters, digits, dots and hyphens, and is {value!r}.")
    if name.endswith("_PORT") and value > 65_535:
        raise SettingError(f"{name} must be a port, 0 to 65535, and is {value}.")
    if name == "NDIF_LOG_LEVEL" and value.lower() not in LOG_LEVELS:
        raise SettingError(f"NDIF_LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}, and is {value!r}.")
    return value


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
        good = parts.port is None or parts.port > 0
    except ValueError:
        return False
    scheme = parts.scheme.partition("+")[0]
    return good and scheme in schemes and (bool(parts.hostname) or scheme == "sqlite")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
