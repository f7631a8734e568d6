"""A read-only Hugging Face Hub of the models this farm holds, for clients without the internet.

``HF_ENDPOINT=http://farm:PORT/hub`` makes stock huggingface_hub, transformers, peft and nnsight clients work. Owns the
Hub's HTTP shape: paths, JSON, headers and error codes. What is held, :mod:`ndif_models.snapshots` says. No torch.
"""

from __future__ import annotations

import functools
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from flask import Blueprint, Response, current_app, jsonify, request, send_file

from ndif_models import hf_cache, snapshots, weights
from ndif_models.errors import Conflict, Forbidden, NdifError, NotFound
from ndif_models.keys import DEFAULT_REVISION
from ndif_models.settings import Settings
from ndif_models.snapshots import Held

blueprint = Blueprint("hub", __name__, url_prefix="/hub")

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")

#: How a model class ends, and the task the Hub gives such models.
_TASKS = {
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForConditionalGeneration": "image-text-to-text",
}


class RepoNotFound(NotFound):
    """The farm holds no such repository."""

    code = "RepoNotFound"


class RevisionNotFound(NotFound):
    """It holds the repository, but not that revision."""

    code = "RevisionNotFound"


class EntryNotFound(NotFound):
    """It holds the revision, but there is no such file in it."""

    code = "EntryNotFound"


@blueprint.errorhandler(NdifError)
def _in_the_hubs_shape(error: NdifError) -> Response:
    """huggingface_hub tells its exceptions apart by the header X-Error-Code."""
    response = jsonify({"error": str(error)})
    response.status_code = error.http_status
    # A header holds Latin-1 only, and what the caller asked for may be anything.
    response.headers["X-Error-Message"] = str(error).encode("ascii", "replace").decode().replace("\n", " ")
    if isinstance(error, RepoNotFound | RevisionNotFound | EntryNotFound):
        response.headers["X-Error-Code"] = error.code
    return response


@blueprint.get("/api/models/<name>", defaults={"org": "", "revision": DEFAULT_REVISION})
@blueprint.get("/api/models/<org>/<name>", defaults={"revision": DEFAULT_REVISION})
@blueprint.get("/api/models/<name>/revision/<path:revision>", defaults={"org": ""})
@blueprint.get("/api/models/<org>/<name>/revision/<path:revision>")
def model_info(org: str, name: str, revision: str) -> Response:
    """Tell about a model: its canonical id, its commit, its files."""
    found = _snapshot(_repo_id(org, name), revision)
    return jsonify(_info(found, with_blobs=request.args.get("blobs") in ("true", "True", "1")))


@blueprint.get("/api/models/<name>/tree/<path:rest>", defaults={"org": ""})
@blueprint.get("/api/models/<org>/<name>/tree/<path:rest>")
def tree(org: str, name: str, rest: str) -> Response:
    """List the files of a revision, or of a folder in it."""
    found, inner = _split(_repo_id(org, name), rest)
    recursive = request.args.get("recursive") in ("true", "True", "1")
    return jsonify(_listing(_place(found), inner.strip("/"), recursive))


@blueprint.get("/<name>/resolve/<path:rest>", defaults={"org": ""})
@blueprint.get("/<org>/<name>/resolve/<path:rest>")
def resolve(org: str, name: str, rest: str) -> Response:
    """Send a file, or a range of it, or (HEAD) what is to know about it."""
    found, file = _split(_repo_id(org, name), rest)
    return _sent(found, file)


@blueprint.route("/", defaults={"rest": ""}, methods=["GET", "POST"])
@blueprint.route("/<path:rest>", methods=["GET", "POST"])
def elsewhere(rest: str) -> NoReturn:
    """Refuse every other path of the Hub in a way its clients understand."""
    raise RepoNotFound("This farm's Hub has models only: their description, their list of files, and the files.")


def _settings() -> Settings:
    found = current_app.config["NDIF_SETTINGS"]
    assert isinstance(found, Settings)
    return found


def _repo_id(org: str, name: str) -> str:
    asked = f"{org}/{name}" if org else name
    try:
        return snapshots.resolve(_settings().hf_home, asked)
    except (NotFound, Conflict) as error:
        raise RepoNotFound(str(error)) from None


def _snapshot(repo_id: str, revision: str) -> Held:
    found = snapshots.find(_settings().hf_home, repo_id, revision)
    if found is None:
        raise RevisionNotFound(f"This farm does not hold revision {revision!r} of {repo_id}.")
    return found


def _split(repo_id: str, rest: str) -> tuple[Held, str]:
    """Tell the revision from the path behind it: a revision may have slashes in it, as ``refs/pr/1`` has."""
    parts = rest.split("/")
    for length in range(1, len(parts) + 1):
        found = snapshots.find(_settings().hf_home, repo_id, "/".join(parts[:length]))
        if found:
            return found, "/".join(parts[length:])
    raise RevisionNotFound(f"This farm does not hold revision {parts[0]!r} of {repo_id}.")


def _place(found: Held) -> Path:
    return snapshots.folder(_settings().hf_home, found)


def _sent(found: Held, name: str) -> Response:
    place = _place(found)
    if name not in hf_cache.files(place):
        raise EntryNotFound(f"{found.repo_id} has no file {name!r}.")
    # Not for HEAD: huggingface_hub takes any refusal of that for a broken connection, and drops the sentence.
    if weights.is_weight(name) and request.method == "GET" and not _settings().hub_serve_weights:
        raise Forbidden(
            f"This farm does not hand out weights, and {name} of {found.repo_id} may hold some:"
            " run the model remotely, or ask the farm to set NDIF_HUB_SERVE_WEIGHTS=true"
        )
    etag = _etag(place / name)
    # Whatever a model's author calls a page stays a download: it must not run as one of the farm's own.
    response = send_file(place / name, "application/octet-stream", as_attachment=True, etag=etag, conditional=True)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Repo-Commit"] = found.commit
    response.headers["X-Linked-ETag"] = f'"{etag}"'
    response.headers["X-Linked-Size"] = str((place / name).stat().st_size)
    return response


def _info(found: Held, with_blobs: bool) -> dict[str, Any]:
    place = _place(found)
    modified = datetime.fromtimestamp(place.stat().st_mtime, UTC)
    info: dict[str, Any] = {
        "_id": found.commit[:24],
        "id": found.repo_id,
        "modelId": found.repo_id,
        "author": found.repo_id.rpartition("/")[0] or None,
        "sha": found.commit,
        "lastModified": modified.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "private": False,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "library_name": "peft" if found.kind == "adapter" else "transformers",
        "siblings": [_sibling(place, name, with_blobs) for name in hf_cache.files(place)],
    }
    return info | _described(place)


@functools.lru_cache(maxsize=256)
def _described(place: Path) -> dict[str, Any]:
    """What a checkpoint's own files say; kept, since a commit's files never change."""
    described: dict[str, Any] = {}
    config = _json(place / weights.MODEL_CONFIG)
    if config:
        described["config"] = {key: config[key] for key in ("architectures", "model_type") if key in config}
        names = [str(name) for name in config.get("architectures") or ()]
        task = next((task for name in names for end, task in _TASKS.items() if name.endswith(end)), None)
        described |= {"pipeline_tag": task} if task else {}
    checkpoint = weights.read_by_loader(place)
    if checkpoint and all(name.endswith(".safetensors") for name in checkpoint[1]):
        try:
            counts = weights.parameter_counts(place / name for name in checkpoint[1])
        except (OSError, ValueError):
            return described
        described["safetensors"] = {"parameters": counts, "total": sum(counts.values())}
    return described


def _listing(place: Path, inner: str, recursive: bool) -> list[dict[str, Any]]:
    names = [name for name in hf_cache.files(place) if not inner or name.startswith(f"{inner}/")]
    if inner and not names:
        raise EntryNotFound(f"There is no folder {inner!r} here.")
    depth = len(inner.split("/")) if inner else 0
    entries = {}
    for name in names:
        parts = name.split("/")
        for length in range(depth + 1, len(parts)):
            path = "/".join(parts[:length])
            entries[path] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
        entries[name] = _entry(place, name)
    return [entry for path, entry in entries.items() if recursive or path.count("/") == depth]


def _entry(place: Path, name: str) -> dict[str, Any]:
    etag, size = _etag(place / name), (place / name).stat().st_size
    entry: dict[str, Any] = {"type": "file", "oid": etag, "size": size, "path": name}
    return entry | ({"lfs": {"oid": etag, "size": size, "pointerSize": 0}} if _SHA256.match(etag) else {})


def _sibling(place: Path, name: str, with_blob: bool) -> dict[str, Any]:
    if not with_blob:
        return {"rfilename": name}
    entry = _entry(place, name)
    sibling: dict[str, Any] = {"rfilename": name, "size": entry["size"], "blobId": entry["oid"]}
    if "lfs" in entry:
        sibling["lfs"] = {"sha256": entry["oid"], "size": entry["size"], "pointerSize": 0}
    return sibling


def _etag(path: Path) -> str:
    """The name of a file's blob, as the Hub has it; of a file without one, what changes when it does."""
    blob = path.resolve()
    if path.is_symlink() and blob.parent.name == "blobs":
        return blob.name
    status = blob.stat()
    return f"{status.st_size:x}-{status.st_mtime_ns:x}"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
