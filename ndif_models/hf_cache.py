"""The Hugging Face cache layout: where a repository's files lie, what its revisions mean, which snapshots are complete.

``<hf_home>/hub/models--ORG--NAME/{blobs/<hash>, refs/<revision>, snapshots/<commit>/<file>}``. Torch-free; asks no Hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import BadRequest
from .keys import DEFAULT_REVISION, is_repo_id
from .weights import read_by_loader

_PREFIX = "models--"
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}\Z")


@dataclass(frozen=True, order=True)
class Held:
    """A complete snapshot of a model or an adapter."""

    repo_id: str
    revision: str
    commit: str
    size_bytes: int
    kind: str


def find(hf_home: Path, repo_id: str, revision: str = DEFAULT_REVISION) -> Held | None:
    """The complete snapshot of a revision (a branch, a tag or a commit), or None."""
    commit = _commit(hf_home, repo_id, revision)
    if commit is None:
        return None
    place = repo_folder(hf_home, repo_id) / "snapshots" / commit
    checkpoint = read_by_loader(place)
    if checkpoint is None:
        return None
    size_bytes = sum((place / name).stat().st_size for name in files(place))
    return Held(repo_id, revision, commit, size_bytes, checkpoint[0])


def folder(hf_home: Path, held: Held) -> Path:
    """Where a snapshot's files are, as transformers would find them."""
    return repo_folder(hf_home, held.repo_id) / "snapshots" / held.commit


def repo_folder(hf_home: Path, repo_id: str) -> Path:
    """The folder of a repository, there or not.

    Raises:
        BadRequest: no repository can have that name.
    """
    if not is_repo_id(repo_id):
        raise BadRequest(f"{repo_id!r} cannot be the name of a model.")
    return hf_home / "hub" / (_PREFIX + repo_id.replace("/", "--"))


def files(place: Path) -> list[str]:
    """The files of a snapshot, relative to its folder; none that leads out of its repository's folder."""
    root = place.parent.parent.resolve()
    names = [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()]
    return sorted(name for name in names if (place / name).resolve().is_relative_to(root))


def point(hf_home: Path, repo_id: str, revision: str, commit: str) -> None:
    """Make a revision mean a commit, in one step."""
    if revision == commit:
        return
    ref = repo_folder(hf_home, repo_id) / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    scratch = ref.with_name(f".{ref.name}.{os.getpid()}")
    scratch.write_text(commit)
    scratch.replace(ref)


def repos(hf_home: Path) -> Iterator[str]:
    """Every repository with a folder here, whatever is in it."""
    cache = hf_home / "hub"
    for path in cache.iterdir() if cache.is_dir() else ():
        repo_id = path.name.removeprefix(_PREFIX).replace("--", "/")
        if path.name.startswith(_PREFIX) and is_repo_id(repo_id):
            yield repo_id


def snapshots(hf_home: Path, repo_id: str) -> Iterator[Held]:
    """The complete snapshots of a repository: one per revision, and under its commit where no revision means it."""
    root = repo_folder(hf_home, repo_id)
    refs = root / "refs"
    revisions = [p.relative_to(refs).as_posix() for p in refs.rglob("*") if p.is_file() and p.name[0] != "."]
    found = [one for one in (find(hf_home, repo_id, revision) for revision in revisions) if one]
    yield from found
    commits = {path.name for path in (root / "snapshots").glob("*")}
    for commit in commits - {one.commit for one in found}:
        bare = find(hf_home, repo_id, commit)
        if bare:
            yield bare


def _commit(hf_home: Path, repo_id: str, revision: str) -> str | None:
    if not is_repo_id(repo_id) or not _REVISION.match(revision) or ".." in revision:
        return None
    try:
        commit = (repo_folder(hf_home, repo_id) / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        commit = revision
    return commit if _COMMIT.match(commit) else None
