"""Serve an engine over HTTP: sockets, signals, and a stop that loses nothing.

It needs the extra `server` (starlette and uvicorn). What is answered, and how, is `serve_app`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn

from .app import ServeConfig, Service
from .queue import FINISH_S

__all__ = ["ServeConfig", "Service", "listen", "make_server", "run"]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; clients that connect before the model is loaded wait.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=128)


class _Server(uvicorn.Server):
    """uvicorn's server, which drains ours while it shuts down and ends without raising the signal again."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], object]) -> None:
        super().__init__(config)
        self._service, self._tell_started = service, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._tell_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        drained = asyncio.create_task(self._service.drain())
        await super().shutdown(sockets=sockets)
        await drained

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(
    service: Service, listening: socket.socket, *, signals: bool = True, started: Callable[[], object] = lambda: None
) -> bool:
    """Serve until SIGTERM or SIGINT; whether the engine's thread has ended.

    Args:
        service: what to serve. listening: see `listen`.
        signals: False leaves signals alone, for a thread other than the main one.
        started: called when requests are taken.
    """
    server = make_server(service, signals=signals, started=started)
    asyncio.run(server.serve(sockets=[listening]))
    return service.worker.join(2 * FINISH_S)


def make_server(
    service: Service, *, signals: bool = True, started: Callable[[], object] = lambda: None
) -> uvicorn.Server:
    """The server that `run` runs; setting its `should_exit` stops it."""
    grace = service.config.grace_s + 3 * FINISH_S
    config = uvicorn.Config(
        service.app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=int(grace) + 1,
    )
    server = _Server(config, service, started)
    if not signals:
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    return server
