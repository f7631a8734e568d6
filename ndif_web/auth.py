"""Who is asking: the ``ndif-api-key`` header; and what carries the farm's signature: sessions and result URLs."""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass

from flask import Request

from ndif_models.errors import Forbidden, Unauthorized
from ndif_models.keys import new_id
from ndif_models.settings import Settings

HEADER = "ndif-api-key"
SIGNATURE_CHARS = 32


@dataclass(frozen=True)
class Identity:
    """The owner behind a key."""

    owner: str
    email: str
    tags: tuple[str, ...] = ()


DEVELOPER = Identity("developer", "developer@localhost", ("developer",))


def identify(request: Request, settings: Settings) -> Identity:
    """The identity of a request.

    Raises:
        Unauthorized: no key where one is needed.
        Forbidden: a key this farm does not know.
    """
    key = request.headers.get(HEADER, "")
    if settings.dev_mode:
        return DEVELOPER
    if not key:
        raise Unauthorized("This farm needs an API key: set NDIF_API_KEY, or run `nnsight login`.")
    if not settings.api_key or not hmac.compare_digest(key.encode(), settings.api_key.encode()):
        raise Forbidden("This farm does not know that API key.")
    return DEVELOPER


def known(request: Request, settings: Settings) -> Identity | None:
    """The identity of a request that did send a key this farm accepts, else None."""
    if not request.headers.get(HEADER):
        return None
    try:
        return identify(request, settings)
    except Forbidden:
        return None


def new_session(owner: str, settings: Settings) -> str:
    """An unguessable id for a session that nobody but ``owner`` can send jobs to."""
    id = new_id("s-")
    return id + _signature("session", f"{id}:{owner}", settings)[:SIGNATURE_CHARS]


def owns_session(session: str, owner: str, settings: Settings) -> bool:
    """Whether a session is one that the farm opened for ``owner``."""
    id, signature = session[:-SIGNATURE_CHARS], session[-SIGNATURE_CHARS:]
    good = _signature("session", f"{id}:{owner}", settings)[:SIGNATURE_CHARS]
    return hmac.compare_digest(signature.encode("utf-8", "replace"), good.encode())


def sign(job_id: str, settings: Settings) -> str:
    """The query string that lets its holder read one job's result for ``NDIF_URL_TTL_S``."""
    expires = int(time.time()) + settings.url_ttl_s
    return f"expires={expires}&signature={_signature('result', f'{job_id}:{expires}', settings)}"


def check_signature(job_id: str, query: dict[str, str], settings: Settings) -> None:
    """Refuse a result URL that is not the farm's, or is too old.

    Raises:
        Forbidden: with the way to a fresh one.
    """
    expires = query.get("expires", "")
    good = expires.isascii() and expires.isdigit() and len(expires) < 13
    if not good or not hmac.compare_digest(
        query.get("signature", "").encode(), _signature("result", f"{job_id}:{int(expires)}", settings).encode()
    ):
        raise Forbidden("This result URL is not valid; ask for the job's status again to get one.")
    if int(expires) < time.time():
        raise Forbidden("This result URL has expired; ask for the job's status again to get a fresh one.")


def _signature(kind: str, text: str, settings: Settings) -> str:
    signed = f"{kind}:{text}".encode("utf-8", "replace")
    return hmac.new(settings.signing_key.encode(), signed, hashlib.sha256).hexdigest()
