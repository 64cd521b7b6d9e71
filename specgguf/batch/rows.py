"""A row of the output, in OpenAI's shape: a response with its status, or an error where there was nothing to send.

Pure over requests, the engine's dicts and errors; it knows no file and no engine.
"""

from __future__ import annotations

import uuid
from typing import Any

from specgguf.config import one_line
from specgguf.errors import BackendError, SpecggufError
from specgguf.serve.protocols import refusals

from .requests import BadLine, Request

Json = dict[str, Any]

FAULT = 500  # a status from here on is no fault of the request


def answered(request: Request, body: Json) -> Json:
    """The row of an answer."""
    return _row(request, response=_response(200, body))


def failed(request: Request, error: Exception) -> Json:
    """The row of a request that `error` ended: what a server would have answered, or what is wrong with its line."""
    if isinstance(error, BadLine):
        return _row(request, error={"code": "invalid_line", "message": one_line(str(error), refusals.MESSAGE_MAX)})
    if not isinstance(error, SpecggufError):
        error = BackendError(f"unexpected {type(error).__name__}: {error}")
    return _row(request, response=_response(refusals.status_of(error), refusals.error_body(error)))


def _row(request: Request, *, response: Json | None = None, error: Json | None = None) -> Json:
    return {"id": request.id, "custom_id": request.custom_id, "response": response, "error": error}


def _response(status: int, body: Json) -> Json:
    return {"status_code": status, "request_id": f"req_{uuid.uuid4().hex}", "body": body}


def status_of(row: Json) -> int:
    """A row's status; 400 where its line was no request."""
    return int(row["response"]["status_code"]) if row["response"] else 400


def n_tokens(row: Json) -> int:
    """Tokens that its answer took, as far as it tells."""
    usage = row["response"]["body"].get("usage") if row["response"] else None
    return int((usage or {}).get("completion_tokens", (usage or {}).get("output_tokens", 0)))


def message_of(row: Json) -> str:
    """What went wrong, in a line; "" where nothing did."""
    if status_of(row) == 200:
        return ""
    error = row["error"] or row["response"]["body"]["error"]
    return str(error["message"])
