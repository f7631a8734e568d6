"""Downloads from a Hugging Face Hub: which files, how far along, and one sentence when it fails. Torch-free."""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import weights
from .errors import BadRequest, Forbidden, NdifError, NotFound, Unavailable
from .hf_cache import Held, find, point, repo_folder

Progress = Callable[[int, int], None]

_REQUEST_TIMEOUT_S = 20.0
_TELL_EVERY_S = 0.5


def download(
    repo_id: str,
    revision: str,
    hf_home: Path,
    token: str,
    endpoint: str | None = None,
    on_progress: Progress | None = None,
) -> Held:
    """Bring a repository in from the Hub; the revision means it only once all of it is here.

    Args:
        endpoint: another Hub than ``HF_ENDPOINT`` or huggingface.co.
        on_progress: told (bytes here, bytes in all), from another thread, about twice a second.

    Returns:
        What is held now, under the Hub's spelling of the name; at once, without asking the Hub, if it is here already.

    Raises:
        NotFound: the Hub has no such repository or revision.
        Forbidden: it is not for everybody, or not for this token.
        Unavailable: the Hub cannot be reached.
        BadRequest: what it has is nothing a loader reads.
    """
    tell = on_progress or (lambda done, total: None)
    here = find(hf_home, repo_id, revision)
    if here is None:
        with _one_sentence(repo_id, revision, endpoint):
            here = _fetch(repo_id, revision, hf_home, token or None, endpoint, tell)
    tell(here.size_bytes, here.size_bytes)
    return here


def _fetch(repo_id: str, revision: str, hf_home: Path, token: str | None, endpoint: str | None, tell: Progress) -> Held:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # whoever asked is told through `tell`
    api = HfApi(endpoint=endpoint, token=token)
    info = api.model_info(repo_id, revision=revision, files_metadata=True, timeout=_REQUEST_TIMEOUT_S)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    names = weights.wanted(siblings)
    if not any(weights.is_weight(name) for name in names):
        raise BadRequest(f"{info.id} on the Hub has no weights that transformers reads (safetensors or .bin).")
    commit = str(info.sha)
    blobs = {_blob(siblings[name]): int(siblings[name].size or 0) for name in names}
    with _watched(repo_folder(hf_home, info.id) / "blobs", blobs, tell):
        # By commit, so that huggingface_hub moves no ref before the files are here.
        snapshot_download(
            info.id,
            revision=commit,
            cache_dir=hf_home / "hub",
            token=token,
            endpoint=endpoint,
            allow_patterns=[glob.escape(name) for name in names],
        )
    if find(hf_home, info.id, commit) is None:
        raise BadRequest(f"{info.id} on the Hub is not a whole model or adapter: a config or some weights are missing.")
    point(hf_home, info.id, revision, commit)
    found = find(hf_home, info.id, revision)
    assert found is not None
    return found


def _blob(sibling: Any) -> str:
    """The name huggingface_hub gives a file's blob: its ETag."""
    return str(sibling.lfs.sha256 if sibling.lfs else sibling.blob_id)


@contextmanager
def _watched(place: Path, blobs: dict[str, int], tell: Progress) -> Iterator[None]:
    """Tell about the bytes on disk; the progress bars of huggingface_hub differ from version to version."""
    total = sum(blobs.values())
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_TELL_EVERY_S):
            tell(min(sum(_bytes_here(place, blob) for blob in blobs), total), total)

    thread = threading.Thread(target=watch, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _bytes_here(place: Path, blob: str) -> int:
    """Bytes of a blob, whole or arriving (``<blob>.<something>.incomplete``, written sparsely by some transports)."""
    sizes = [0]
    for path in place.glob(f"{blob}*"):
        try:
            status = path.stat()
        except OSError:
            continue
        sizes.append(min(status.st_size, status.st_blocks * 512) if path.suffix == ".incomplete" else status.st_size)
    return max(sizes)


@contextmanager
def _one_sentence(repo_id: str, revision: str, endpoint: str | None) -> Iterator[None]:
    from huggingface_hub import errors

    hub = endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        yield
    except NdifError:
        raise
    except (errors.GatedRepoError, errors.DisabledRepoError):
        raise Forbidden(
            f"{repo_id} is gated: accept its terms on {hub} and set HF_TOKEN to a token that may."
        ) from None
    except errors.RevisionNotFoundError:
        raise NotFound(f"{repo_id} has no revision {revision!r} on {hub}.") from None
    except errors.RepositoryNotFoundError:
        raise NotFound(f"There is no model {repo_id!r} on {hub}, or it is private and needs HF_TOKEN.") from None
    except errors.HFValidationError:
        raise BadRequest(f"{repo_id!r} cannot be the name of a model.") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            why = error.server_message or "set HF_TOKEN to a token that may read it."
            raise Forbidden(f"{hub} refuses {repo_id}: {why}") from None
        raise Unavailable(f"{hub} answered {status} for {repo_id}; try again later.") from None
    except Exception as error:  # the transport differs between versions of huggingface_hub, and so do its errors
        why = f"{hub} cannot be reached for {repo_id} ({_first_line(error)})"
        raise Unavailable(f"{why}; what lies in a folder needs no Hub: `ndif models import`.") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
