"""Serve an engine over HTTP: sockets, TLS, signals, and a stop that loses nothing.

It needs the extra `server` (starlette and uvicorn). What is answered, and how, is `app`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import socket
import ssl
from collections.abc import Callable, Generator
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from specgguf.errors import ConfigError

from .app import Service
from .config import ApiKey, ServeConfig
from .connections import Connections
from .queue import FINISH_S

__all__ = ["ApiKey", "ServeConfig", "Service", "check_certificate", "listen", "make_server", "run"]

EXIT_S = 10.0  # beyond the grace: then the process ends whatever holds the interpreter


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; clients that connect before the model is loaded wait. "::" listens on IPv4 too.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=128, dualstack_ipv6=both)


def check_certificate(certfile: str | None, keyfile: str | None) -> None:
    """Raise ConfigError where the two PEM files are not what TLS needs; nothing where there are none."""
    if certfile is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile)
    except (OSError, ssl.SSLError) as error:
        why = (
            error.strerror.lower()
            if error.strerror and not isinstance(error, ssl.SSLError)
            else "no PEM, or not a pair"
        )
        raise ConfigError(
            f"cannot use the certificate {certfile}: {why}",
            hint="PEM files: --ssl-certfile the certificate and its chain, --ssl-keyfile its key",
        ) from error


class _Server(uvicorn.Server):
    """uvicorn's server, which drains ours while it shuts down and ends without raising the signal again."""

    def __init__(
        self, config: uvicorn.Config, service: Service, connections: Connections, started: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self._service, self._connections, self._tell_started = service, connections, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.set_exception_handler(self._connections.on_loop_error)
        if self.config.ssl is not None:  # a connection is ours once its handshake is over, and uvicorn bounds none
            limit = self._connections.head_timeout_s
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=limit)
        await super().startup(sockets=sockets)
        self._tell_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        drained = asyncio.create_task(self._service.drain())
        await super().shutdown(sockets=sockets)
        if self.force_exit:
            drained.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drained

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins to stop, the second ends at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
        wait_s = 1.0 if self.force_exit else self._service.config.grace_s + EXIT_S
        nowhere = os.open(os.devnull, os.O_WRONLY)
        faulthandler.dump_traceback_later(wait_s, exit=True, file=nowhere)  # its thread needs no interpreter

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

    Raises:
        ConfigError: the TLS files are none.
    """
    server = make_server(service, signals=signals, started=started)
    asyncio.run(server.serve(sockets=[listening]))
    ended = service.worker.join(1.0)  # `drain` has waited already
    if signals:
        faulthandler.cancel_dump_traceback_later()
    return ended


def make_server(
    service: Service, *, signals: bool = True, started: Callable[[], object] = lambda: None
) -> uvicorn.Server:
    """The server that `run` runs; setting its `should_exit` stops it."""
    settings = service.config
    check_certificate(settings.certfile, settings.keyfile)
    connections = Connections(settings.connections_max, settings.head_timeout_s)
    config = uvicorn.Config(
        service.app,
        http=connections.protocol,  # type: ignore[arg-type]  # called as the class would be
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        root_path=settings.root_path,
        ssl_certfile=settings.certfile,
        ssl_keyfile=settings.keyfile,
        timeout_graceful_shutdown=int(settings.grace_s + 2 * FINISH_S) + 1,
    )
    server = _Server(config, service, connections, started)
    if not signals:
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    return server
