"""``make demo``: a farm in a temporary session, a model, and a real nnsight client in another process.

Owns the farm's side; what the client does is ``demo_client.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import httpx

from ndif_models import snapshots
from ndif_models.session import running_variables

HUB_MODEL = "openai-community/gpt2"
MADE_MODEL = "ndif-demo/small-gpt2"


@dataclass(frozen=True)
class Place:
    """The demo's temporary folder, and the environment its commands run in."""

    home: Path
    hf_home: Path

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the user's farm, free ports, a session of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NDIF_")}
        ports = dict.fromkeys(("NDIF_API_PORT", "NDIF_BROKER_PORT", "NDIF_OBJECT_STORE_PORT"), "0")
        return {**kept, **ports, "NDIF_SESSION_ROOT": str(self.home / "sessions"), "HF_HOME": str(self.hf_home)}

    def run(self, *argv: str, extra: dict[str, str] | None = None) -> None:
        """Run a Python module to its end, showing what it prints; a failure ends the demo."""
        done = subprocess.run(
            [sys.executable, "-m", *argv], env={**self.environment, **(extra or {})}, cwd=self.home, check=False
        )
        if done.returncode != 0:
            raise click.ClickException(f"`{' '.join(argv)}` failed (exit status {done.returncode}).")


@click.command()
@click.option(
    "--model", default="", help="A repository on the Hub, or a model's folder; GPT-2 or a made one unless given."
)
def demo(model: str) -> None:
    """Start a farm, run a few traces on it, compare them with the same traces run here, and stop it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ndif-demo-") as folder:
        user_cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
        from_hub = not Path(model).is_dir() if model else _hub_answers()
        # A download is worth keeping; a model made or imported for the demo is not.
        place = Place(Path(folder), user_cache if from_hub else Path(folder) / "hf")
        repo_id = _obtain(place, Path(model) if model and not from_hub else None, model or HUB_MODEL, from_hub)
        with _running(place):
            place.run("ndif_web.cli", "deploy", repo_id)
            _client(place, repo_id)
    click.echo(f"\nThe demo took {time.monotonic() - started:.0f} s and left nothing running. Next: README.md.")


def _hub_answers() -> bool:
    try:
        return httpx.head("https://huggingface.co/api/models", timeout=3).status_code < 500
    except httpx.HTTPError:
        click.echo("The Hugging Face Hub does not answer: a small model is made instead (random weights).")
        return False


def _obtain(place: Place, folder: Path | None, name: str, from_hub: bool) -> str:
    if from_hub:
        return name
    if folder is not None:
        repo_id = f"local/{folder.resolve().name}"
        return snapshots.import_folder(folder, repo_id, place.hf_home).repo_id
    made = place.home / "made"
    place.run("ndif_tasks.replica.make_model", "--arch", "gpt2", "--size", "small", "--out", str(made))
    return snapshots.import_folder(made, MADE_MODEL, place.hf_home).repo_id


@contextmanager
def _running(place: Place) -> Iterator[None]:
    try:
        place.run("ndif_web.cli", "start", "--detach")
        yield
    finally:
        place.run("ndif_web.cli", "stop")


def _client(place: Place, repo_id: str) -> None:
    url = str(running_variables(place.home / "sessions" / "default")["NDIF_API_URL"]).rstrip("/")
    held = snapshots.find(place.hf_home, snapshots.resolve(place.hf_home, repo_id))
    if held is None:
        raise click.ClickException(f"{repo_id} was deployed and is not in {place.hf_home}.")
    # The client has an empty cache and this farm as its Hub: nothing it shows can come from elsewhere.
    own = {"HF_HOME": str(place.home / "client"), "HF_ENDPOINT": f"{url}/hub", "NDIF_HOST": url}
    argv = ("--repo", held.repo_id, "--weights", str(snapshots.folder(place.hf_home, held)))
    place.run("ndif_web.cli.demo_client", *argv, extra=own)


if __name__ == "__main__":
    demo()
