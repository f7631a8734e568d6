"""A replica's tray: the one folder of this machine's that its jobs see, besides their model. Torch-free.

The adapter that a job names is checked and laid there, outside the jail, and taken away when the job is over.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil

from ndif_models import snapshots
from ndif_models.errors import NotFound, Unavailable
from ndif_models.settings import Settings

FOLDER = "trays"


class Tray:
    """An empty folder with this process's number, and what is laid there for a job."""

    def __init__(self, settings: Settings) -> None:
        self._hf_home = settings.hf_home
        trays = settings.session_dir / FOLDER
        self.path = trays / str(os.getpid())
        _remove_stale(trays)
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        self.path.chmod(0o755)  # for whatever user a job has; nobody else comes through the folders above

    @contextlib.contextmanager
    def adapter(self, repo_id: str | None, name: str) -> Iterator[str | None]:
        """Lay out an adapter, if one is wanted, for as long as the context lasts; gives where it lies.

        Raises:
            NotFound: this machine does not hold it.
            Unavailable: it cannot be laid out here and now.
        """
        if not repo_id:
            yield None
            return
        held = snapshots.find(self._hf_home, repo_id)
        if held is None or held.kind != "adapter":
            raise NotFound(f"The PEFT adapter {repo_id!r} is not held by the machine that serves this model.")
        place = self.path / name
        try:
            try:
                _lay_out(snapshots.folder(self._hf_home, held), place)
            except OSError as error:
                raise Unavailable(f"The PEFT adapter {repo_id!r} cannot be laid out: {error.strerror}.") from None
            yield str(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def remove(self) -> None:
        """Take the folder away."""
        shutil.rmtree(self.path, ignore_errors=True)


def _lay_out(snapshot: Path, place: Path) -> None:
    for source in sorted(found for found in snapshot.rglob("*") if found.is_file()):
        target = place / source.relative_to(snapshot)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _linked(source.resolve(), target):
            shutil.copyfile(source, target)
            target.chmod(0o644)


def _linked(source: Path, target: Path) -> bool:
    if not source.stat().st_mode & stat.S_IROTH:
        return False
    try:
        os.link(source, target)
    except OSError:  # another filesystem, or somebody else's file
        return False
    return True


def _remove_stale(trays: Path) -> None:
    for place in trays.glob("*"):
        if not (place.name.isdigit() and psutil.pid_exists(int(place.name))):
            shutil.rmtree(place, ignore_errors=True)
