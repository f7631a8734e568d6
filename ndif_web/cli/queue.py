"""``ndif queue`` and ``ndif kill``: the jobs that wait and run."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click

from .context import Invocation, pass_invocation
from .farm import Farm
from .output import json_option, print_json, print_table, size

_PATH = "/admin/jobs"
_COLUMNS = ("job", "model", "status", "place", "owner", "attempt", "replica", "for")
_OVER_COLUMNS = ("job", "model", "status", "ended", "owner", "attempts", "replica", "ran", "cpu", "peak", "finished")
_WATCH_S = 2.0


@click.command()
@click.argument("model", required=False)
@click.option("--finished", is_flag=True, help="The latest jobs that are over, the newest first.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until interrupted.")
@json_option
@pass_invocation
def queue(invocation: Invocation, model: str | None, finished: bool, watch: bool, as_json: bool) -> None:
    """Show the jobs that run and wait, of MODEL or of all, in the order in which they will be taken.

    Next: `ndif kill JOB` ends one.
    """
    with Farm(invocation.settings()) as farm:
        while True:
            path = f"{_PATH}/finished" if finished else _PATH
            found = farm.get(path, **({"queue": model} if model else {}))["jobs"]
            if watch:
                click.clear()
            if as_json:
                print_json(found)
            elif found and finished:
                print_table([_over(job) for job in found], _OVER_COLUMNS)
            elif found:
                print_table(_rows(found), _COLUMNS)
            else:
                what = "is over yet" if finished else "runs or waits"
                click.echo(f"No job {what}. Next: `ndif status` shows what is served.")
            if not watch:
                return
            time.sleep(_WATCH_S)


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@pass_invocation
def kill(invocation: Invocation, jobs: tuple[str, ...]) -> None:
    """End each JOB, whether it waits or runs; its owner is told that it was cancelled.

    Next: `ndif queue` shows what is left.
    """
    with Farm(invocation.settings()) as farm:
        answers = [farm.delete(f"{_PATH}/{id}") for id in jobs]
    for answer in answers:
        click.echo(f"{answer['id']} {'is cancelled' if answer['cancelled'] else 'was over already'}.")


def _over(job: dict[str, Any]) -> dict[str, Any]:
    row = {"job": job["id"], "model": job["queue"], "status": job["status"].lower(), "ended": job["ended"]}
    row |= {"owner": job["owner"], "attempts": job["attempts"], "replica": job["replica"]}
    row |= {"ran": f"{job['run_s']:.2f} s", "cpu": f"{job['cpu_s']:.2f} s", "peak": size(job["peak_bytes"])}
    return row | {"finished": job["finished_at"][:19]}


def _rows(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    places: Counter[str] = Counter()
    for job in found:
        place = None
        if job["status"] == "QUEUED":
            places[job["queue"]] += 1
            place = places[job["queue"]]
        row = {"job": job["id"], "model": job["queue"], "status": job["status"].lower(), "place": place}
        rows.append(row | {"owner": job["owner"], "attempt": job["attempt"] or None, "replica": job["replica_id"]})
        rows[-1]["for"] = f"{job['for_s']:.0f} s"
    return rows
