"""Who may ask, by what name of this server, and how much: the middleware before every route.

It also gives every request an id and notes what becomes of it. It knows ASGI, and nothing of models or bodies.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .config import ApiKey
from .http import OverQuota, Unauthorised, error_response
from .protocols.bodies import BadRequest

OPEN_PATHS = ("/health", "/v1/health")  # probes of containers know neither keys nor names
MINUTE_S = 60.0

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:\d{1,5})?", re.ASCII)
_REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)


@dataclass
class RequestRecord:
    """What is known of one request; grows while it is answered, and ends in the log and the metrics.

    Attributes:
        id: the client's X-Request-Id, or a new one. key: the name of the key that was shown.
        path: as it was sent, quoted, so that it is one word.
        status: 0 while nothing was answered; 499 for a client that left.
        n_prompt, n_generated: tokens. error: one line, where it failed.
    """

    id: str
    method: str
    path: str
    client: str = ""
    key: str = ""
    model: str = ""
    status: int = 0
    seconds: float = 0.0
    n_prompt: int = 0
    n_generated: int = 0
    error: str = ""

    def text(self) -> str:
        """For people: one line, whatever characters a client put into it."""
        parts = [self.method, self.path, str(self.status), f"{self.seconds:.2f} s"]
        parts += [f"{self.n_prompt}+{self.n_generated} tokens"] if self.n_prompt else []
        parts += [self.key] if self.key else []
        line = " ".join([*parts, self.id, *([f"({self.error})"] if self.error else [])])
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)

    def fields(self) -> dict[str, Any]:
        """For programs: everything but what is empty."""
        values = {"request_id": self.id, **{k: v for k, v in vars(self).items() if k != "id"}}
        return {name: round(v, 4) if isinstance(v, float) else v for name, v in values.items() if v != ""}


class Quotas:
    """Requests and tokens of the last minute, by key.

    Args:
        clock: seconds.
    """

    def __init__(self, keys: Collection[ApiKey], clock: Callable[[], float]) -> None:
        self._limits = {
            (key.name, what): limit
            for key in keys
            for what, limit in (("requests", key.requests_per_minute), ("tokens", key.tokens_per_minute))
            if limit is not None
        }
        self._clock = clock
        self._used: dict[tuple[str, str], deque[tuple[float, int]]] = {k: deque() for k in self._limits}

    def enter(self, name: str) -> None:
        """Count a request of the key `name`.

        Raises:
            OverQuota: it has used up its minute; nothing is counted then.
        """
        for what in ("requests", "tokens"):
            used, limit = self._recent(name, what), self._limits.get((name, what))
            if limit is not None and sum(n for _, n in used) >= limit:
                raise OverQuota(f"this key may use {limit} {what} per minute", used[0][0] + MINUTE_S - self._clock())
        self._add(name, "requests", 1)

    def spend(self, name: str, n_tokens: int) -> None:
        """Count the tokens of an answered request: known when it has ended, so they delay the next one."""
        self._add(name, "tokens", n_tokens)

    def _recent(self, name: str, what: str) -> deque[tuple[float, int]]:
        used = self._used.get((name, what), deque())
        while used and used[0][0] <= self._clock() - MINUTE_S:
            used.popleft()
        return used

    def _add(self, name: str, what: str, n: int) -> None:
        if (name, what) in self._limits and n:
            self._recent(name, what).append((self._clock(), n))


class Doors:
    """Middleware: turns away requests without a right key, or for another host's name.

    The host's name is checked because a page on the web can point its own name at this machine; whoever sends none
    (HTTP/1.0) is no browser.

    Args:
        keys: any of these is right; none means that no key is asked for.
        hosts: the names that a request may call this server by; None takes any.
        observe: told of every request when it was answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Collection[ApiKey],
        hosts: Collection[str] | None,
        observe: Callable[[RequestRecord], None],
    ) -> None:
        self._app, self._observe = app, observe
        self._hosts = None if hosts is None else {host.lower().strip("[]").removesuffix(".") for host in hosts}
        self._keys = [(key.key.encode(), key.name) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through, or answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        asked = scope["raw_path"].decode("ascii", "backslashreplace").removeprefix(root)
        record = RequestRecord(_request_id(headers), scope["method"], asked, _address(scope))
        scope["specgguf.record"] = record
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", record.id.encode())]}
            await send(message)

        try:
            await self._checked(path, headers, record)(scope, receive, watched)
        finally:
            record.status, record.seconds = record.status or 499, loop.time() - started
            self._observe(record)

    def _checked(
        self, path: str, headers: Mapping[bytes, bytes], record: RequestRecord
    ) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        if path in OPEN_PATHS:
            return self._app
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is not None and host and host_name(host) not in self._hosts:
            refused = BadRequest(
                f"this server does not answer to the name {host!r:.80}; --allow-host NAME lets it", status=403
            )
            return error_response(refused)
        if self._keys:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            given = given.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"").strip()
            right = [name for key, name in self._keys if hmac.compare_digest(given, key)]
            if not right:
                return error_response(Unauthorised("the API key is missing or wrong"))
            record.key = right[0]
        return self._app


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, in lower case; "" where it is no host at all."""
    whole = _HOST.fullmatch(host.strip().lower())
    return whole[1].strip("[]").removesuffix(".") if whole else ""


def _address(scope: Mapping[str, Any]) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
