"""The connections of one server: how many, how long one may take to ask, and how it ends without losing an answer.

uvicorn's HTTP/1.1 protocol with what a server on an open port needs beside it. It knows bytes and timers, and nothing
of requests but where they begin and end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .http import IS_EVENTS, KEEPALIVE

logger = logging.getLogger("specgguf.serve")

FILES_RESERVED = 64  # of the process's file limit: models, libraries, the terminal
LINGER_S = 5.0  # a client that still sends its body is listened to for so long after its answer
PROBES_S = (0.0, 0.05, 0.5)  # after a client's end of stream; then every PROBE_S
PROBE_S = 5.0
FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 2\r\ncontent-length: 0\r\n\r\n"


class Connections:
    """The open connections of a server.

    Args:
        n_max: one more closes the one that is idle longest; where none is idle, it is told 503.
        head_timeout_s: from the first moment (or the first byte after an answer) to a complete request head.
    """

    def __init__(self, n_max: int, head_timeout_s: float) -> None:
        self.n_max, self.head_timeout_s = min(n_max, _files_max()), head_timeout_s
        self._open: dict[Connection, None] = {}  # the one that was used longest ago first

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection) -> bool:
        """Take `connection` in, at the cost of an idle one if need be; False if there is no place for it."""
        if len(self._open) >= self.n_max and not self.close_idle(1):
            return False
        self._open[connection] = None
        return True

    def used(self, connection: Connection) -> None:
        """`connection` has sent something."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def discard(self, connection: Connection) -> None:
        """`connection` has ended."""
        self._open.pop(connection, None)

    def close_idle(self, n: int | None = None) -> int:
        """End connections on which no request is being answered, those idle longest first; returns how many."""
        idle = [connection for connection in self._open if connection.is_idle][:n]
        for connection in idle:
            self.discard(connection)
            connection.abort()
        return len(idle)

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For `loop.set_exception_handler`: where no file is left to accept with, idle connections give theirs."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            logger.warning("no file is left for a new connection: %d idle ones were closed", self.close_idle())
        else:
            loop.default_exception_handler(context)

    def protocol(self, *args: Any, **keywords: Any) -> Connection:
        """A new connection's protocol, as uvicorn makes them."""
        return Connection(self, *args, **keywords)


def _files_max() -> int:
    try:
        import resource
    except ImportError:  # no such limit there
        return 2**31
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else max(1, soft - FILES_RESERVED)


class Connection(H11Protocol):
    """One client's connection."""

    def __init__(self, connections: Connections, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._all = connections
        self._head_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._lingering = False

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def abort(self) -> None:
        """Close now."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(cast(asyncio.Transport, _Lingering(transport, self._close)))
        if self._all.admit(self):
            self._await_head()
        else:
            transport.write(FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._all.discard(self)
        for timer in (self._head_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._lingering:
            return
        self._all.used(self)
        super().data_received(data)
        if not self.is_idle and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        elif self.is_idle:
            self._await_head()

    def _await_head(self) -> None:
        """Bytes that come one by one do not move the end."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._all.head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.is_idle and not self.transport.is_closing():
            self.abort()

    # --- the end ----------------------------------------------------------------------------------------------

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has sent its request may close its side and wait; one that has left looks the same until it
        is written to."""
        waits = not self.is_idle and not self.cycle.more_body and self.scope["http_version"] == "1.1"
        if not waits or self._lingering or self.scheme == "https":
            return False
        self.cycle.keep_alive = False
        self._probe(0)
        return True

    def _probe(self, i: int) -> None:
        """Write what every client skips: the system of one that has left answers with a reset, which ends this."""
        if self.is_idle or self.transport.is_closing():
            return
        if not self.cycle.response_started:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif self.cycle.scope.get(IS_EVENTS):
            self.transport.write(self.conn.send(h11.Data(data=KEEPALIVE)) or b"")
        wait_s = PROBES_S[i + 1] - PROBES_S[i] if i + 1 < len(PROBES_S) else PROBE_S
        self._probe_timer = self.loop.call_later(wait_s, self._probe, i + 1)

    def _close(self, transport: asyncio.Transport) -> None:
        """Close; but a client that still sends would lose the answer to a reset, so it is listened to for a while."""
        if self.conn.their_state is not h11.SEND_BODY or not transport.can_write_eof() or self._lingering:
            transport.close()
            return
        self._lingering = True
        transport.write_eof()
        transport.resume_reading()
        self.loop.call_later(LINGER_S, transport.close)


class _Lingering:
    """A transport whose `close` is decided by its connection."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[asyncio.Transport], None]) -> None:
        self._transport, self._close = transport, close
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._closed = True
        self._close(self._transport)

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()
