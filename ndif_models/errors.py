"""Every error a caller can be told, as one tree: a code, an HTTP status, and one sentence safe to show."""

from __future__ import annotations

from typing import ClassVar


class NdifError(Exception):
    """Base of the tree. ``str(error)`` is the sentence a caller reads."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500


class BadRequest(NdifError):
    """The request itself is wrong; sending it again unchanged fails again."""

    code = "bad_request"
    http_status = 400


class Unauthorized(NdifError):
    """No key was sent where one is needed."""

    code = "unauthorized"
    http_status = 401


class Forbidden(NdifError):
    """The key, signature or session does not allow this."""

    code = "forbidden"
    http_status = 403


class NotFound(NdifError):
    """Nothing of that name is here."""

    code = "not_found"
    http_status = 404


class NotDeployed(NotFound):
    """The model is not deployed on this farm."""

    code = "not_deployed"


class Conflict(NdifError):
    """The state of the thing does not allow this now."""

    code = "conflict"
    http_status = 409


class Gone(NdifError):
    """A job that never was, has expired, or is somebody else's: one and the same answer."""

    code = "gone"
    http_status = 410


class TooLarge(NdifError):
    """A body or value over a limit."""

    code = "too_large"
    http_status = 413


class Unavailable(NdifError):
    """A part of the farm cannot answer now; trying again later may work."""

    code = "unavailable"
    http_status = 503


class LoadFailed(Conflict):
    """A model is deployed but could not be loaded; the sentence says why. Only an operator can help."""

    code = "load_failed"


class SettingError(NdifError):
    """A setting has an impossible value, or a service cannot start; the sentence names the setting."""

    code = "setting"


class WireError(NdifError):
    """The other end of a socket sent something outside the protocol."""

    code = "wire"
