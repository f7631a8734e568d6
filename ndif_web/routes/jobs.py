"""Jobs as nnsight clients see them: send one, ask after it, fetch its values, read its lines, cancel it."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from flask import Blueprint, Response, jsonify, request
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from werkzeug.datastructures import FileStorage

from ndif_models import snapshots
from ndif_models.errors import BadRequest, Forbidden, Gone, NotFound, TooLarge
from ndif_models.keys import ModelKey, new_id
from ndif_models.wire import PICKLE_MAGIC, ZSTD_MAGIC, Envelope, Status, Update, check_payload
from ndif_tasks import updates
from ndif_tasks.jobs import Job, Submission, is_inline
from ndif_tasks.store import payload_object, result_object
from ndif_web.auth import Identity, check_signature, identify, owns_session, sign
from ndif_web.deployed import serving_key
from ndif_web.farm import farm

blueprint = Blueprint("jobs", __name__)
log = logging.getLogger(__name__)

NNSIGHT_VERSIONS = SpecifierSet(">=0.8,<0.9")
HEAD_BYTES = max(len(ZSTD_MAGIC), len(PICKLE_MAGIC))


@blueprint.post("/request")
def submit() -> Response:
    """Accept a job: checked, stored, in line, and only then answered."""
    identity = identify(request, farm().settings)
    check_client(request.headers.get("nnsight-version", ""))
    envelope, blob = _parts()
    key = serving_key(farm(), ModelKey.parse(envelope.model_key))
    _check_session(envelope.session_id, identity.owner)
    _check_adapter(envelope.env.peft)
    head = blob.stream.read(HEAD_BYTES)
    blob.stream.seek(0)
    check_payload(head, envelope.compress)
    job_id = new_id()
    position = farm().jobs.submit(_submission(job_id, key, envelope, identity, blob))
    log.info("job %s: number %d in line for %s", job_id, position, key.queue)
    return jsonify(Update(id=job_id, status=Status.RECEIVED, description="Accepted.").model_dump(mode="json"))


def check_client(version: str) -> None:
    """Refuse clients whose payloads this farm's nnsight does not read.

    Raises:
        BadRequest: naming both versions.
    """
    try:
        fits = not version or Version(version) in SpecifierSet(str(NNSIGHT_VERSIONS), prereleases=True)
    except InvalidVersion:
        fits = False
    if not fits:
        raise BadRequest(
            f"This farm runs nnsight {NNSIGHT_VERSIONS} and the client sent version {version[:40]!r}: "
            f'pip install "nnsight{NNSIGHT_VERSIONS}".'
        )


def _parts() -> tuple[Envelope, FileStorage]:
    if request.mimetype != "multipart/form-data":
        raise BadRequest("A request is multipart/form-data with a field `data` and a file `blob`.")
    data, blob = request.form.get("data"), request.files.get("blob")
    if data is None or blob is None:
        missing = "field `data`" if data is None else "file `blob`"
        raise BadRequest(f"The request has no {missing}; it must be complete multipart/form-data.")
    return Envelope.parse(data), blob


def _check_session(session: str, owner: str) -> None:
    if session and not owns_session(session, owner, farm().settings):
        raise Forbidden("The request names a session that was not opened with this key; subscribe again.")


def _check_adapter(peft: str | None) -> None:
    if not peft:
        return
    found = snapshots.find(farm().settings.hf_home, peft)
    if found is None or found.kind != "adapter":
        raise NotFound(f"The PEFT adapter {peft!r} is not held by this farm; ask its operators to import it.")


def _submission(job_id: str, key: ModelKey, envelope: Envelope, identity: Identity, blob: FileStorage) -> Submission:
    settings, store = farm().settings, farm().store
    size = blob.stream.seek(0, 2)
    blob.stream.seek(0)
    if size > settings.max_request_bytes:
        raise TooLarge("The request is larger than this farm takes (NDIF_MAX_REQUEST_BYTES).")
    small = size <= settings.inline_payload_bytes
    if not small:
        store.put(payload_object(job_id), blob.stream, size)
    return Submission(
        id=job_id,
        queue=key.queue,
        stream=envelope.session_id or job_id,
        owner=identity.owner,
        tags=identity.tags,
        compress=envelope.compress,
        env=envelope.env.model_dump(exclude_none=True),
        payload=blob.stream.read() if small else None,
        payload_url="" if small else store.get_url(payload_object(job_id), inside=True),
        put_urls=[store.put_url(result_object(job_id, n + 1)) for n in range(settings.max_attempts)],
    )


@blueprint.get("/response/<job_id>")
def response(job_id: str) -> Response:
    """The latest status of a job; a finished one's values behind a freshly signed URL."""
    job = own_job(job_id)
    return jsonify(latest(job).model_dump(mode="json"))


def latest(job: Job) -> Update:
    """A job's status for a client that polls: with its place in line, or the URL of its values."""
    if job.status == Status.QUEUED:
        position = farm().jobs.position(job)
        return job.update().model_copy(update={"description": str(position)} if position else {})
    update = job.update(result_url(job.id, job.result) if job.status == Status.COMPLETED else None)
    if job.finished and job.log_lines and job.stream == job.id:
        where = f"{base_url()}/response/{job.id}/log"
        update.description = f"{update.description}\n(Lines printed: {job.log_lines}; read them at {where})"
    return update


def result_url(job_id: str, result: str) -> str:
    """A short-lived URL, which needs no key, of the result that lies there."""
    if is_inline(result) or not farm().store.reachable_from(request.host):
        return f"{base_url()}/results/{job_id}?{sign(job_id, farm().settings)}"
    return farm().store.get_url(result)


def base_url() -> str:
    """The farm as this client reaches it."""
    return farm().settings.api_url.rstrip("/") or request.host_url.rstrip("/")


@blueprint.get("/response/<job_id>/log")
def lines(job_id: str) -> Response:
    """The lines a job printed."""
    job = own_job(job_id)
    return jsonify(id=job.id, lines=updates.log_lines(farm().redis, job.stream, job.id))


@blueprint.delete("/jobs/<job_id>")
def cancel(job_id: str) -> Response:
    """End a job that waits or runs."""
    job = own_job(job_id)
    return jsonify(id=job.id, cancelled=farm().jobs.cancel(job.id))


@blueprint.get("/results/<job_id>")
def result(job_id: str) -> Response:
    """A result's bytes, for whoever holds a URL the farm signed."""
    check_signature(job_id, request.args.to_dict(), farm().settings)
    job = farm().jobs.get(job_id)
    if job is None or job.status != Status.COMPLETED:
        raise Gone("The values of this job have expired.")
    if not is_inline(job.result):
        return _from_store(job.result)
    body = farm().jobs.body(job.result)
    if body is None:
        raise Gone("The values of this job have expired.")
    return Response(body, mimetype="application/octet-stream")


def _from_store(key: str) -> Response:
    """An object passed on, for clients that cannot reach the store themselves."""
    stack = ExitStack()
    size, chunks = stack.enter_context(farm().store.read(key))
    response = Response(chunks, mimetype="application/octet-stream", headers={"Content-Length": str(size)})
    response.call_on_close(stack.close)
    return response


def own_job(job_id: str) -> Job:
    """A job of the caller's.

    Raises:
        Gone: it never was, has expired, or is somebody else's.
    """
    return known_job(job_id, identify(request, farm().settings).owner)


def known_job(job_id: str, owner: str | None = None) -> Job:
    """A job; ``owner``: whose it must be.

    Raises:
        Gone: it never was, has expired, or is somebody else's.
    """
    job = farm().jobs.get(job_id)
    if job is None or owner not in (None, job.owner):
        raise Gone("There is no such job: it never was, or its values have expired.")
    return job
