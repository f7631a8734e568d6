"""``ndif start`` and ``ndif stop``."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ndif_models import session
from ndif_models.errors import Conflict, NdifError, SettingError
from ndif_models.settings import Settings
from ndif_tasks.process import signal_recorded

from . import channel, plan, probes
from .context import Invocation, pass_invocation
from .lifeline import held
from .logs import follow
from .services import SERVICES, clear_sockets
from .stack import Supervisor

_STOP_LIMIT_S = 30.0
_LEFTOVER_LIMIT_S = 10.0
service_argument = click.argument("service", required=False, type=click.Choice(plan.NAMES))


@click.command()
@service_argument
@click.option("--detach", is_flag=True, help="Run in the background; return when the farm is ready.")
@click.option("--verbose", is_flag=True, help="Print every service's log as it is written.")
@pass_invocation
def start(invocation: Invocation, service: str | None, detach: bool, verbose: bool) -> None:
    """Start the farm on this machine, or only one SERVICE of it.

    A service is left out when its URL is set to elsewhere (NDIF_BROKER_URL, NDIF_OBJECT_STORE_URL). In a session that
    runs already, SERVICE is started again in it.

    Next: `ndif deploy openai-community/gpt2` serves a model; `ndif stop` ends the farm.
    """
    if detach and verbose:
        raise click.UsageError("--verbose prints here, and with --detach there is no here; see `ndif logs -f`.")
    settings = invocation.settings(running_session=False)
    if session.read(settings.session_dir):
        _start_in_running_session(settings, service)
        return
    names = (service,) if service else plan.local_names(settings)
    with _session_lock(settings.session_dir):
        _await_leftovers(settings.session_dir)
        _check_elsewhere(settings)
        made = plan.make(settings, names)
        if detach:
            _detached(made)
        else:
            _supervise(made, click.echo, verbose=verbose)


@click.command()
@service_argument
@click.option("--force", is_flag=True, help="Kill at once instead of asking first.")
@pass_invocation
def stop(invocation: Invocation, service: str | None, force: bool) -> None:
    """Stop the farm of this session, or only one SERVICE of it.

    A service that was stopped stays stopped until `ndif start SERVICE`.

    Next: `ndif start` brings the farm back, with its data.
    """
    settings = invocation.settings(running_session=False)
    record = session.read(settings.session_dir)
    if record is None:
        raise Conflict(f"No farm runs in the session {settings.session_dir}; `ndif start` starts one.")
    if service:
        channel.ask(settings.session_dir, {"op": "stop", "service": service})
        click.echo(f"{service} is stopped; `ndif start {service}` starts it again.")
        return
    signal_recorded(record["pid"], record["start_time"], signal.SIGKILL if force else signal.SIGTERM)
    if not _wait_gone(record, _STOP_LIMIT_S):
        raise Conflict(f"The farm is still stopping after {_STOP_LIMIT_S:g} s; `ndif stop --force` kills it.")
    if force:
        clear_sockets(settings.session_dir)
        with contextlib.suppress(OSError):
            (settings.session_dir / session.FILE).unlink()
    click.echo("The farm is stopped.")


def _check_elsewhere(settings: Settings) -> None:
    """Ask what runs elsewhere whether it answers, before anything here waits for it.

    Raises:
        SettingError: it does not.
    """
    for variable, reason in probes.unreached(settings):
        if reason is not None:
            raise SettingError(f"What {variable} names cannot be used: {reason.rstrip('.')}.")


def _start_in_running_session(settings: Settings, service: str | None) -> None:
    if service is None:
        raise Conflict(f"A farm already runs in the session {settings.session_dir}; `ndif stop` stops it.")
    channel.ask(settings.session_dir, {"op": "start", "service": service})
    click.echo(f"{service} is ready.")


def _supervise(made: plan.Plan, say: Callable[[str], None], *, verbose: bool = False) -> None:
    """Run the session in this process until it is stopped."""
    os.environ.update(made.settings.environment())
    log = made.log("supervisor")

    def report(line: str) -> None:
        with open(log, "a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        with contextlib.suppress(OSError):  # the terminal may have been closed
            say(line)

    def ready(seconds: float) -> None:
        for name in made.names:
            address = SERVICES[name].address(made)
            report(f"{name:<13} ready" + (f"  {address}" if address else ""))
        if plan.API in made.names:
            report(f"The farm is ready at {made.settings.url} ({seconds:.1f} s).")
            say(f"Clients: export NDIF_HOST={made.settings.url} HF_ENDPOINT={made.settings.url}/hub")
            say("Next: ndif models list, ndif deploy MODEL")
        else:
            report(f"Ready ({seconds:.1f} s).")
            say("Next: ndif info")

    with _followed(made) if verbose else contextlib.nullcontext():
        Supervisor(made, report).run(ready)
    report("The farm is stopped.")


@contextlib.contextmanager
def _followed(made: plan.Plan) -> Iterator[None]:
    """Print what the services print."""
    stop = threading.Event()
    paths = {name: made.log(name) for name in made.names}
    follower = threading.Thread(target=follow, args=(paths, click.echo, None, stop), daemon=True)
    follower.start()
    try:
        yield
    finally:
        stop.set()
        follower.join()


def _detached(made: plan.Plan) -> None:
    """Run the session in a child of its own session; print what it says until it is ready or has failed.

    Raises:
        SettingError: it has failed; the sentence is its own.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _be_the_background(made, write)
    os.close(write)
    outcome: dict[str, str] = {}
    with open(read) as messages:
        for line in messages:
            outcome = json.loads(line)
            if "say" in outcome:
                click.echo(outcome["say"])
            else:
                break
    if "ready" in outcome:
        return
    raise SettingError(outcome.get("error", f"The farm ended while it started; see {made.log('supervisor')}."))


def _be_the_background(made: plan.Plan, write: int) -> None:
    """The life of the detached supervisor; never returns."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(made.log("supervisor"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, fd)
    messages = os.fdopen(write, "w")
    status = 1

    def tell(**message: str) -> None:
        # The one who started it may have gone by then.
        with contextlib.suppress(OSError, ValueError):
            print(json.dumps(message), file=messages, flush=True)

    def say(line: str) -> None:
        tell(say=line)
        if line.startswith("Next:"):
            tell(ready="")
            messages.close()

    try:
        _supervise(made, say)
        status = 0
    except NdifError as error:
        tell(error=str(error))
    except Exception:
        traceback.print_exc()
        tell(error=f"The farm failed while it started; {made.log('supervisor')} says where.")
    finally:
        os._exit(status)


@contextlib.contextmanager
def _session_lock(session_dir: Path) -> Iterator[None]:
    """Hold the session, so that two starts at once cannot both have it."""
    plan.private_folder(session_dir)
    with open(session_dir / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Conflict(f"A farm is starting or stopping in the session {session_dir}; try again soon.") from None
        yield


def _await_leftovers(session_dir: Path) -> None:
    """A supervisor that was just killed has leashes that still clear up: wait for their ports."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        _wait_gone(json.loads((session_dir / session.FILE).read_text()), _LEFTOVER_LIMIT_S)
        clear_sockets(session_dir)


def _wait_gone(record: dict[str, Any], limit_s: float) -> bool:
    """Whether the supervisor, and whatever hung on its lifelines, is gone within the time."""
    deadline = time.monotonic() + limit_s
    while session.process_start_time(record["pid"]) == record["start_time"] or held(record["lifelines"]):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
