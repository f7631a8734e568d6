"""The models this machine holds: what is here, what a person's name for it means, how one is brought in.

The face of :mod:`ndif_models.hf_cache` (the layout) and :mod:`ndif_models.hub_client` (downloads). Torch-free.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

from . import weights
from .errors import BadRequest, Conflict, NotFound, SettingError
from .hf_cache import Held, find, folder, point, repo_folder, repos, snapshots
from .hub_client import download
from .keys import DEFAULT_REVISION, is_repo_id

__all__ = [
    "Held",
    "download",
    "find",
    "folder",
    "held",
    "import_folder",
    "is_complete",
    "repo_folder",
    "resolve",
    "weight_bytes",
]

_NAMES_IN_A_SENTENCE = 8
#: Smaller files, and those that only their owner reads, are copied even where they could be linked: a copy can be made
#: readable for a job's own user.
_LINK_BYTES = 64 * 2**20


def held(hf_home: Path) -> list[Held]:
    """Every complete snapshot on this machine, by repo id and revision."""
    return sorted(found for repo in repos(hf_home) for found in snapshots(hf_home, repo))


def is_complete(hf_home: Path, repo_id: str, revision: str = DEFAULT_REVISION) -> bool:
    """Whether all that a loader needs is here."""
    return find(hf_home, repo_id, revision) is not None


def weight_bytes(hf_home: Path, held: Held) -> int:
    """The bytes of the weight files that a loader reads."""
    place = folder(hf_home, held)
    checkpoint = weights.read_by_loader(place)
    return sum((place / name).stat().st_size for name in checkpoint[1]) if checkpoint else 0


def resolve(hf_home: Path, name: str) -> str:
    """The one held repo id that a person's name means: itself, whatever its case, or without its organisation.

    Raises:
        NotFound: nothing here is called that.
        Conflict: several are.
    """
    if is_complete(hf_home, name):
        return name
    here = sorted(repo for repo in repos(hf_home) if any(True for _ in snapshots(hf_home, repo)))
    if name in here:
        return name
    for spelling in (str, str.lower):
        said = spelling(name)
        matches = [repo for repo in here if said in (spelling(repo), spelling(repo).rpartition("/")[2])]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise Conflict(f"{name!r} may mean {' or '.join(matches)}; say which.")
    raise NotFound(f"This farm holds no model called {name!r}; it holds {_listed(here)}.")


def import_folder(path: Path, repo_id: str, hf_home: Path) -> Held:
    """Bring a local folder in as a repository; its ``main`` then means the folder's present contents.

    Large weights are hard-linked where they can be, so a file in the folder may be replaced later, not overwritten.

    Raises:
        BadRequest: the folder is not a whole model or adapter, or the name is not ORG/NAME.
        Conflict: a model is held here under the same name in other letters.
        SettingError: HF_HOME cannot be written.
    """
    names = _importable(path, repo_id)
    _check_case(hf_home, repo_id)
    try:
        return _imported(path, names, repo_id, hf_home)
    except OSError as error:
        place = error.filename or hf_home
        raise SettingError(f"{path} cannot be imported under HF_HOME={hf_home}: {place}: {error.strerror}.") from None


def _imported(path: Path, names: list[str], repo_id: str, hf_home: Path) -> Held:
    target = repo_folder(hf_home, repo_id)
    (hf_home / "hub").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".importing-", dir=hf_home / "hub") as scratch:
        hashes = {name: _bring(path / name, Path(scratch)) for name in names}
        commit = _digest(hashes)
        _settle(Path(scratch), hashes, target, commit)
    point(hf_home, repo_id, DEFAULT_REVISION, commit)
    found = find(hf_home, repo_id)
    if found is None:
        raise BadRequest(f"{path} changed while it was being imported; import it again.")
    return found


def _importable(path: Path, repo_id: str) -> list[str]:
    if not is_repo_id(repo_id) or "/" not in repo_id:
        raise BadRequest(f"{repo_id!r} is not a name such as ORG/NAME.")
    if not path.is_dir():
        raise BadRequest(f"{path} is not a folder.")
    configs = [name for name in (weights.MODEL_CONFIG, weights.ADAPTER_CONFIG) if (path / name).is_file()]
    if not configs:
        raise BadRequest(f"{path} holds neither {weights.MODEL_CONFIG} nor {weights.ADAPTER_CONFIG}.")
    for name in configs:
        if not _is_json_object(path / name):
            raise BadRequest(f"{path / name} is no JSON object.")
    checkpoint = weights.read_by_loader(path)
    if checkpoint is None:
        raise BadRequest(f"{path} has not all of its weights: no safetensors or pytorch_model.bin, or only some parts.")
    everything = [found.relative_to(path).as_posix() for found in path.rglob("*") if found.is_file()]
    everything = [name for name in everything if name.isprintable()]
    names = sorted({*weights.wanted(everything), *checkpoint[1]})
    root = path.resolve()
    for name in names:
        if not (path / name).resolve().is_relative_to(root):
            raise BadRequest(f"{path / name} is a link to a file outside the folder.")
    _check_weights(path, [name for name in checkpoint[1] if name.endswith(".safetensors")])
    return names


def _is_json_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (ValueError, RecursionError):
        return False


def _check_case(hf_home: Path, repo_id: str) -> None:
    # The Hub knows no two such names, and a client that writes one means the other as well.
    for other in repos(hf_home):
        if other.lower() == repo_id.lower() and other != repo_id:
            raise Conflict(f"{other} is held here already, and names may not differ only in capitals.")


def _check_weights(path: Path, names: list[str]) -> None:
    try:
        weights.parameter_counts(path / name for name in names)
    except ValueError as error:
        raise BadRequest(f"{path} cannot be imported: {error}") from None


def _bring(source: Path, scratch: Path) -> str:
    """Link or copy a file under the hash of its contents, as the Hub names large files."""
    arrived = scratch / "arriving"
    told = source.stat()
    linked = told.st_size >= _LINK_BYTES and bool(told.st_mode & stat.S_IROTH) and _linked(source, arrived)
    if not linked:
        shutil.copyfile(source, arrived)
        arrived.chmod(0o644)
    with arrived.open("rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()
    arrived.replace(scratch / name)
    return name


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another filesystem, or one without links
        return False
    return True


def _digest(hashes: dict[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:40]


def _settle(scratch: Path, hashes: dict[str, str], target: Path, commit: str) -> None:
    """Move blobs to their place, then the snapshot's folder of links in one step."""
    (target / "blobs").mkdir(parents=True, exist_ok=True)
    (target / "snapshots").mkdir(exist_ok=True)
    for digest in set(hashes.values()):
        (scratch / digest).replace(target / "blobs" / digest)
    place = scratch / "snapshot"
    for name, digest in hashes.items():
        link = place / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path("../" * (2 + name.count("/")), "blobs", digest))
    try:
        place.replace(target / "snapshots" / commit)
    except OSError:  # the same contents are here already
        if not (target / "snapshots" / commit).is_dir():
            raise


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMES_IN_A_SENTENCE
    return (", ".join(names[:_NAMES_IN_A_SENTENCE]) or "none at all") + (f" and {more} more" if more > 0 else "")
