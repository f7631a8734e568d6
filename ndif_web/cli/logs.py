"""``ndif logs``: what services and replicas print."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from ndif_models.errors import BadRequest, NotFound

from .context import Invocation, pass_invocation
from .farm import Farm

_POLL_S = 0.2


@click.command()
@click.argument("service")
@click.argument("job", required=False)
@click.option("-f", "--follow", "following", is_flag=True, help="Go on printing as lines are written.")
@click.option("-n", "lines", default=100, show_default=True, type=click.IntRange(min=0), help="How many lines.")
@pass_invocation
def logs(invocation: Invocation, service: str, job: str | None, following: bool, lines: int) -> None:
    """Print the end of a SERVICE's log: a service's name, `supervisor`, or a replica as `ndif status` shows it.

    `ndif logs job JOB` prints the lines that a job printed.

    Next: `ndif info` shows which services run, `ndif logs SERVICE -f` follows one.
    """
    if (service == "job") != (job is not None):
        raise BadRequest("Name one SERVICE, or `job` and the job's id.")
    if job is not None:
        with Farm(invocation.settings()) as farm:
            for line in farm.get(f"/admin/jobs/{job}/log")["lines"][-lines:] if lines else ():
                click.echo(line)
        return
    folder = invocation.settings().session_dir / "logs"
    held = sorted(log.stem for log in folder.glob("*.log"))
    wanted = service.removesuffix(".log")
    found = next((name for name in (wanted, f"replica-{wanted}") if name in held), None)
    if found is None:
        raise NotFound(f"{service} has no log here; there are {', '.join(held) or 'none yet: start the farm first'}.")
    path = folder / f"{found}.log"
    with open(path, errors="replace") as file:
        for line in deque(file, maxlen=lines):
            click.echo(line, nl=False)
        if following:
            follow({"": path}, click.echo, file.tell())


def follow(
    paths: Mapping[str, Path],
    say: Callable[[str], None],
    offset: int | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Say each line as it is written, behind its name, until ``stop``; from the files' present ends unless told."""
    offsets = {
        name: (path.stat().st_size if path.exists() else 0) if offset is None else offset
        for name, path in paths.items()
    }
    stop = stop or threading.Event()
    last = False
    while not last:
        last = stop.is_set()
        for name, path in paths.items():
            try:
                with open(path, "rb") as file:
                    file.seek(offsets[name])
                    chunk = file.read()
            except OSError:
                continue
            whole = chunk[: chunk.rfind(b"\n") + 1]
            offsets[name] += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                say(f"{name:<13} | {line}" if name else line)
        stop.wait(_POLL_S)
