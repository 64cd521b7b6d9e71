"""An error as OpenAI's clients read it: its HTTP status, and the body that names it.

It knows the library's errors and those of a body; what only a connection can do wrong is added by `http`.
"""

from __future__ import annotations

from collections.abc import Sequence

from specgguf.config import one_line
from specgguf.errors import BackendError, Busy, Cancelled, ConfigError, ContextFull, Unsupported

from .bodies import BadRequest
from .reply import Json

MESSAGE_MAX = 400  # characters of an error: whoever sent megabytes gets a line back

# The first that fits: kind of error -> status, OpenAI's type, code.
Kinds = Sequence[tuple[type[BaseException], tuple[int, str, str | None]]]
KINDS: Kinds = (
    (ContextFull, (400, "invalid_request_error", "context_length_exceeded")),
    (ConfigError, (400, "invalid_request_error", None)),
    (Unsupported, (400, "invalid_request_error", "unsupported")),
    (Busy, (503, "server_error", "busy")),
    (Cancelled, (503, "server_error", "cancelled")),
    (BackendError, (500, "server_error", "backend")),
)


def status_of(error: BaseException, kinds: Kinds = KINDS) -> int:
    """The HTTP status of an error; 500 is a fault of ours."""
    if isinstance(error, BadRequest):
        return error.status
    return next((what[0] for kind, what in kinds if isinstance(error, kind)), 500)


def error_body(error: BaseException, kinds: Kinds = KINDS) -> Json:
    """An error in OpenAI's shape; one that nobody expected says nothing of its inside."""
    if isinstance(error, BadRequest):
        return _error(str(error), "invalid_request_error", error.param, error.code)
    for kind, (_, name, code) in kinds:
        if isinstance(error, kind):
            hint = getattr(error, "hint", "")
            return _error(f"{error} ({hint})" if hint else str(error), name, None, code)
    return _error("the server failed; its log says more", "server_error", None, "internal")


def _error(message: str, kind: str, param: str | None, code: str | None) -> Json:
    param = None if param is None else one_line(param, 80)
    return {"error": {"message": one_line(message, MESSAGE_MAX), "type": kind, "param": param, "code": code}}
