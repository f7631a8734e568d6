"""The farm's HTTP interface as ``ndif`` uses it: JSON in, JSON out, every failure one sentence."""

from __future__ import annotations

from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from ndif_models import session
from ndif_models.errors import NdifError, Unavailable
from ndif_models.settings import LOOPBACK, Settings

_TIMEOUT_S = 30.0


class Refused(NdifError):
    """The farm answered, and refused; the sentence is its own."""

    code = "refused"


class Farm:
    """A connection to the web tier of the farm that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._session_dir = settings.session_dir
        self.url = settings.url
        headers = {"ndif-api-key": settings.api_key} if settings.api_key else {}
        # A proxy of the environment knows nothing of this machine's loopback.
        local = urlsplit(self.url).hostname in LOOPBACK
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=_TIMEOUT_S, trust_env=not local)

    def __enter__(self) -> Farm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, **query: str) -> Any:
        """GET a JSON document."""
        return self._ask("GET", path, params=query)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST a JSON document; returns the answer."""
        return self._ask("POST", path, json=body)

    def delete(self, path: str, **query: str) -> Any:
        """DELETE; returns the answer."""
        return self._ask("DELETE", path, params=query)

    def _ask(self, method: str, path: str, **given: Any) -> Any:
        try:
            answer = self._client.request(method, path, **given)
        except httpx.TimeoutException:
            raise Unavailable(f"The farm at {self.url} did not answer within {_TIMEOUT_S:g} s.") from None
        except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol):
            # The session may run without its web tier.
            start = "ndif start api" if session.read(self._session_dir) else "ndif start"
            raise Unavailable(
                f"No farm answers at {self.url}; `{start}` starts one here, NDIF_API_URL names another."
            ) from None
        if answer.is_success:
            return _json(answer)
        raise Refused(_detail(answer))


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        raise Unavailable(f"What answers at {answer.url} is no farm; check NDIF_API_URL.") from None


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"The farm refused {answer.request.method} {answer.url.path} with status {answer.status_code}."
