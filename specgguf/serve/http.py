"""HTTP around the calls: bodies in within limits, errors out in OpenAI's shape, events as they come.

It knows Starlette and ASGI, and nothing of models, keys or the fields of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from specgguf.errors import SpecggufError

from .protocols import refusals
from .protocols.bodies import BadRequest
from .queue import Closing, QueueFull

Json = dict[str, Any]

KEEPALIVE = b": still working\n\n"
IS_EVENTS = "specgguf.events"  # in the scope of a request that is answered by events: a comment may be put between them
RETRY_S = 2  # what Retry-After says where nothing better is known


class Late(SpecggufError):
    """A time limit ended this request before there was an answer."""


class Unauthorised(SpecggufError):
    """The API key is missing or wrong."""


class Gone(SpecggufError):
    """The client left before there was an answer."""


class OverQuota(SpecggufError):
    """This key has asked for as much as it may in a minute.

    Attributes:
        retry_s: when it may ask again.
    """

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(message)
        self.retry_s = retry_s


# --- errors -----------------------------------------------------------------------------------------------

KINDS: refusals.Kinds = (
    (Unauthorised, (401, "invalid_request_error", "invalid_api_key")),
    (Gone, (499, "server_error", "client_gone")),
    (OverQuota, (429, "rate_limit_error", "rate_limit_exceeded")),
    (QueueFull, (429, "rate_limit_error", "queue_full")),
    (Closing, (503, "server_error", "stopping")),
    (Late, (503, "server_error", "timeout")),
    *refusals.KINDS,
)


def status_of(error: BaseException) -> int:
    """The HTTP status of an error; 500 is a fault of ours."""
    return refusals.status_of(error, KINDS)


def error_body(error: BaseException) -> Json:
    """An error in OpenAI's shape; one that nobody expected says nothing of its inside."""
    return refusals.error_body(error, KINDS)


def error_response(error: BaseException) -> JSONResponse:
    """The whole answer to a request that failed before it was answered."""
    status = status_of(error)
    wait_s = max(1, math.ceil(error.retry_s)) if isinstance(error, OverQuota) else RETRY_S
    headers = {"retry-after": str(wait_s)} if status in (429, 503) else {}
    if isinstance(error, Late):
        headers["x-should-retry"] = "false"  # OpenAI's client would ask the same again
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in (408, 413):  # the rest of the body was not read
        headers["connection"] = "close"
    return JSONResponse(error_body(error), status, headers)


# --- in ---------------------------------------------------------------------------------------------------


async def body_of(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body of a request that must be JSON.

    Raises:
        BadRequest: 415 another type, 413 too long, 408 too slow.
        ClientDisconnect: the client left.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest(f"content-type must be application/json, not {kind or 'absent'}", status=415)
    too_long = BadRequest(f"the body is longer than {max_bytes} bytes", status=413)
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > max_bytes):
        raise too_long
    data = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                data += part
                if len(data) > max_bytes:
                    raise too_long
    except TimeoutError:
        raise BadRequest(f"the body did not come within {timeout_s:g} s", status=408) from None
    return bytes(data)


async def gone(receive: Receive) -> None:
    """Returns when the client has left (or its answer is complete)."""
    while (await receive())["type"] != "http.disconnect":
        pass


# --- out --------------------------------------------------------------------------------------------------


class EventStream(Response):
    """Server-sent events as they come; a comment where nothing came for a while.

    Args:
        events: already encoded; None stands for "still working".
        write_timeout_s: a client that reads nothing for so long is dropped.
        dropped: told then.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes | None, None],
        *,
        write_timeout_s: float,
        dropped: Callable[[], object],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._events, self._timeout_s, self._dropped = events, write_timeout_s, dropped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; as ASGI wants it."""
        start: Message = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        scope[IS_EVENTS] = True
        try:
            await send(start)
            async with contextlib.aclosing(self._events):
                async for data in self._events:
                    await self._write(send, {"body": KEEPALIVE if data is None else data, "more_body": True})
            await self._write(send, {"body": b"", "more_body": False})
        except (OSError, TimeoutError):
            self._dropped()

    async def _write(self, send: Send, what: Json) -> None:
        await asyncio.wait_for(send({"type": "http.response.body", **what}), self._timeout_s)
