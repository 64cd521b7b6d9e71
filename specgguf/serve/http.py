"""HTTP around the calls: bodies in within limits, errors out in OpenAI's shape, events as they come, and who may ask.

It knows Starlette and ASGI, and nothing of models, queues or the fields of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specgguf.errors import BackendError, Busy, Cancelled, ConfigError, ContextFull, SpecggufError, Unsupported

from .bodies import BadRequest
from .queue import Closing, QueueFull

Json = dict[str, Any]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN_PATHS = ("/health",)
DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": still working\n\n"
RETRY_S = 2  # what Retry-After says


class Late(SpecggufError):
    """A time limit ended this request before there was an answer."""


class Unauthorised(SpecggufError):
    """The API key is missing or wrong."""


# --- errors -----------------------------------------------------------------------------------------------

# The first that fits: kind of error -> status, OpenAI's type, code.
KINDS: tuple[tuple[type[BaseException], tuple[int, str, str | None]], ...] = (
    (Unauthorised, (401, "invalid_request_error", "invalid_api_key")),
    (QueueFull, (429, "rate_limit_error", "queue_full")),
    (Closing, (503, "server_error", "stopping")),
    (Late, (503, "server_error", "timeout")),
    (ContextFull, (400, "invalid_request_error", "context_length_exceeded")),
    (ConfigError, (400, "invalid_request_error", None)),
    (Unsupported, (400, "invalid_request_error", "unsupported")),
    (Busy, (503, "server_error", "busy")),
    (Cancelled, (503, "server_error", "cancelled")),
    (BackendError, (500, "server_error", "backend")),
)


def status_of(error: BaseException) -> int:
    """The HTTP status of an error; 500 is a fault of ours."""
    if isinstance(error, BadRequest):
        return error.status
    return next((what[0] for kind, what in KINDS if isinstance(error, kind)), 500)


def error_body(error: BaseException) -> Json:
    """An error in OpenAI's shape; one that nobody expected says nothing of its inside."""
    if isinstance(error, BadRequest):
        return _error(str(error), "invalid_request_error", error.param, error.code)
    for kind, (_, name, code) in KINDS:
        if isinstance(error, kind):
            hint = getattr(error, "hint", "")
            return _error(f"{error} ({hint})" if hint else str(error), name, None, code)
    return _error("the server failed; its log says more", "server_error", None, "internal")


def _error(message: str, kind: str, param: str | None, code: str | None) -> Json:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(error: BaseException) -> JSONResponse:
    """The whole answer to a request that failed before it was answered."""
    status = status_of(error)
    headers = {"retry-after": str(RETRY_S)} if status in (429, 503) else {}
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


def event(item: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Server-sent events as they come; a comment where nothing came for a while.

    Args:
        events: already encoded; None stands for "still working".
        write_timeout_s: a client that reads nothing for so long is dropped.
        dropped: told then.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes | None, None], *, write_timeout_s: float, dropped: Callable[[], object]
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._timeout_s, self._dropped = events, write_timeout_s, dropped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; as ASGI wants it."""
        start: Message = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
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


# --- who may ask ------------------------------------------------------------------------------------------


class Guard:
    """Middleware: turns away requests without a right key, or (on loopback) for another host's name.

    The host's name is checked because a page on the web can point its own name at this machine.

    Args:
        keys: any of these is right; none means that no key is asked for.
        hosts: the names that a request may call this server by; None takes any.
        observe: told of every answered request: path, status, seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Collection[str],
        hosts: Collection[str] | None,
        observe: Callable[[Scope, int, float], None],
    ) -> None:
        self._app, self._hosts, self._observe = app, hosts, observe
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through, or answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        started, status = loop.time(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._checked(scope)(scope, receive, watched)
        finally:
            self._observe(scope, status, loop.time() - started)

    def _checked(self, scope: Scope) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        name = host_name(headers.get(b"host", b"").decode("latin-1"))
        if self._hosts is not None and name not in self._hosts:
            return error_response(BadRequest(f"this server does not answer to the name {name!r}", status=403))
        if self._keys and scope["path"] not in OPEN_PATHS:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            right = [hmac.compare_digest(given.strip(), key) for key in self._keys]
            if scheme.lower() != b"bearer" or not any(right):
                return error_response(Unauthorised("the API key is missing or wrong"))
        return self._app


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, in lower case."""
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


def client_of(scope: Mapping[str, Any], *, keyed: bool) -> str:
    """Whose turn it is: the key's, where keys were checked, else the address's."""
    for name, value in scope["headers"]:
        if keyed and name == b"authorization":
            return str(value)
    return scope["client"][0] if scope.get("client") else ""
